"""Flower as the Procfile runs it: nothing of it without the password, and no delay at its end."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.deployment import eventually, free_port
from worker.up import ROOT, read_procfile, start

LOGIN = ("headrace", "a long password")


def run(log: Path, **environment: str) -> tuple["subprocess.Popen[str]", str]:
    port = str(free_port())
    environment = os.environ | {"FLOWER_PORT": port, "FLOWER_BASIC_AUTH": ":".join(LOGIN)} | environment
    with log.open("w") as output:
        process = start(read_procfile(ROOT / "Procfile")["flower"], output=output, environment=environment)
    return process, f"http://127.0.0.1:{port}"


def status(url: str, auth: tuple[str, str] | None = None) -> int | None:
    try:
        return httpx.get(url, auth=auth, verify=False).status_code
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process, address = run(tmp_path_factory.mktemp("flower") / "log")
    eventually(lambda: status(f"{address}/"), what="Flower's first answer")
    yield address
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize("page", ["/", "/tasks", "/api/workers", "/metrics", "/healthcheck"])
def test_every_page_asks_for_the_password(address: str, page: str) -> None:
    assert status(address + page) == 401
    assert status(address + page, ("headrace", "another")) == 401
    assert status(address + page, LOGIN) == 200


@pytest.mark.slow
def test_it_ends_at_once_without_redis(tmp_path: Path) -> None:
    process, _ = run(tmp_path / "log", REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    eventually(lambda: "Failed to capture events" in (tmp_path / "log").read_text(), what="a try")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
