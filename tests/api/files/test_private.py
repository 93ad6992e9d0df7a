"""What customers send lies where no other account can read it, and only as long as it is wanted."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.files.intake import Spool, sweep
from tests.fixtures.api_process import ApiProcess, api_process
from tests.fixtures.checkpoint import write_checkpoint
from tests.fixtures.deployment import START_SECONDS, STOP_SECONDS, eventually, free_port
from tests.fixtures.inputs import lines
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.private import make_private
from worker.store.database.session import Store
from worker.up import ROOT


def open_to_others(directory: Path) -> list[str]:
    """Return what in a directory somebody else may read, write or enter."""
    return [
        f"{stat.filemode(path.lstat().st_mode)} {path.relative_to(directory)}"
        for path in directory.rglob("*")
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    ]


@pytest.fixture
def left_open(tmp_path: Path) -> Path:
    """Return a data directory as an older release left it."""
    data_dir = tmp_path / "data"
    for name in ("blobs/ab/old", "incoming/old"):
        path = data_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a prompt")
        path.chmod(0o644)
    for path in (data_dir, *data_dir.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    return data_dir


def put(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines(5))})


@pytest.mark.slow
def test_nothing_in_the_data_directory_of_a_deployment_is_open_to_others(
    left_open: Path, tmp_path: Path
) -> None:
    model = tmp_path / "served"
    model.mkdir()
    port = free_port()
    away = {"DATABASE_URL", "REDIS_URL", "HEADRACE_AUTH"}
    environment = {name: value for name, value in os.environ.items() if name not in away} | {
        "HEADRACE_DATA_DIR": str(left_open),
        "HEADRACE_MODEL": str(write_tiny_llama(model)),
        "PORT": str(port),
    }
    command = [sys.executable, "-m", "worker.embedded", sys.executable, "-m", "worker.up", "web", "files"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "dispatcher"], cwd=ROOT, env=environment, stdout=log, stderr=log, umask=0o022
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            def is_there() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    return client.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            eventually(is_there, seconds=START_SECONDS, what="the API")
            assert put(client).status_code == 200
            assert open_to_others(left_open) == []
            # For root, Postgres runs as another user, who must get through; he sees no names.
            assert left_open.stat().st_mode & 0o077 in ({0, 0o001} if os.geteuid() == 0 else {0})
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)
    assert open_to_others(left_open) == []


@pytest.fixture
def api(store: Store, left_open: Path, tmp_path: Path) -> Iterator[ApiProcess]:  # noqa: ARG001
    model = tmp_path / "served"
    model.mkdir()
    with api_process(tmp_path, write_checkpoint(model), HEADRACE_DATA_DIR=str(left_open)) as running:
        yield running


def test_the_api_alone_keeps_what_it_is_sent_to_itself(api: ApiProcess, left_open: Path) -> None:
    with httpx.Client(base_url=api.url, timeout=60) as client:
        assert put(client).status_code == 200
    assert open_to_others(left_open) == []


@pytest.mark.slow
def test_what_a_killed_api_left_is_swept_by_the_next_but_no_upload_that_goes_on(
    api: ApiProcess, left_open: Path, tmp_path: Path
) -> None:
    incoming = left_open / "incoming"
    assert list(incoming.iterdir()) == [], "what was left over was swept at the start"
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    begun = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + lines(20)
    end = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    length = b"Content-Length: %d\r\n\r\n" % (len(begun) + 2 + len(end))
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as client:
        client.sendall(head + length + begun)
        eventually(lambda: len(list(incoming.iterdir())) == 1, what="the upload")
        with api_process(tmp_path, tmp_path / "served", HEADRACE_DATA_DIR=str(left_open)):
            assert len(list(incoming.iterdir())) == 1, "another process swept it"
            client.sendall(b"\r\n" + end)
            assert b" 200 OK" in client.recv(65536)
            assert list(incoming.iterdir()) == []
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as client:
        client.sendall(head + length + begun)
        eventually(lambda: len(list(incoming.iterdir())) == 1, what="the upload")
        api.process.kill()
        api.process.wait()
    assert len(list(incoming.iterdir())) == 1
    with api_process(tmp_path, tmp_path / "served", HEADRACE_DATA_DIR=str(left_open)):
        assert list(incoming.iterdir()) == []


def test_a_spool_that_is_swept_before_it_is_locked_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock, swept = fcntl.flock, []

    def late(file: object, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append(True)
            sweep(tmp_path)
        flock(file, how)  # type: ignore[call-overload]

    monkeypatch.setattr(fcntl, "flock", late)
    spool = Spool(tmp_path, 100)
    spool.write(b"x")
    sweep(tmp_path)
    assert swept
    assert list(tmp_path.iterdir()) == [spool.path]
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_private_already_is_not_looked_through(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o644)
    tmp_path.chmod(0o700)
    make_private(tmp_path)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert tmp_path.stat().st_mode & 0o777 == 0o700
