import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis, RedisError

from tests.fixtures.deployment import eventually
from worker.embedded import EmbeddedError, services


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    # Not pytest's own: each run of it closes the one above to other users, of which Postgres may be one.
    with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as directory:
        yield Path(directory).resolve()


def test_data_survives_a_restart(tmp_path: Path) -> None:
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)}
    with services(environment) as first:
        with psycopg.connect(first["DATABASE_URL"]) as connection:
            connection.execute("CREATE TABLE kept (n int)")
        with Redis.from_url(first["REDIS_URL"]) as redis:
            redis.set("kept", "yes")
    with services(environment) as second:
        with psycopg.connect(second["DATABASE_URL"]) as connection:
            connection.execute("SELECT n FROM kept")
        with Redis.from_url(second["REDIS_URL"]) as redis:
            assert redis.get("kept") == b"yes"
        assert second["HEADRACE_WEBHOOK_SECRET"] == first["HEADRACE_WEBHOOK_SECRET"]


@pytest.mark.parametrize("urls", [{}, {"DATABASE_URL": "postgresql://a", "REDIS_URL": "redis://b"}])
def test_one_directory_has_one_user_and_a_second_is_told_whose(tmp_path: Path, urls: dict[str, str]) -> None:
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)} | urls
    holder = rf"process {os.getpid()}, since \d{{4}}-.*HEADRACE_DATA_DIR"
    with services(environment), pytest.raises(EmbeddedError, match=holder), services(environment):
        pass


def test_with_urls_nothing_starts(tmp_path: Path) -> None:
    environment = {
        "HEADRACE_DATA_DIR": str(tmp_path),
        "DATABASE_URL": "postgresql://a",
        "REDIS_URL": "redis://b",
    }
    with services(environment) as added:
        assert set(added) == {
            "FLOWER_BASIC_AUTH",
            "HEADRACE_AUTH",
            "HEADRACE_DATA_DIR",
            "HEADRACE_SECRET_KEY",
            "HEADRACE_WEBHOOK_SECRET",
        }
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["flower_password", "lock", "secret_key", "webhook_secret"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "added_auth"),
    [
        ({}, "off"),
        ({"HEADRACE_HOST": "127.0.0.1"}, "off"),
        ({"HEADRACE_HOST": "localhost"}, "off"),
        ({"HEADRACE_HOST": "0.0.0.0"}, None),
        ({"HEADRACE_HOST": "headrace.example"}, None),
        ({"HEADRACE_AUTH": "keys"}, None),
    ],
)
def test_keys_are_not_asked_for_on_loopback_only(
    tmp_path: Path, given: dict[str, str], added_auth: str | None
) -> None:
    urls = {"DATABASE_URL": "postgresql://a", "REDIS_URL": "redis://b"}
    with services({"HEADRACE_DATA_DIR": str(tmp_path)} | urls | given) as added:
        assert added.get("HEADRACE_AUTH") == added_auth


STALE = ("postmaster.pid", ".s.PGSQL.5432.lock")


def run(data_dir: Path, *command: str, directly: bool = False, **streams: Any) -> "subprocess.Popen[str]":
    environment = {k: v for k, v in os.environ.items() if k not in {"DATABASE_URL", "REDIS_URL"}}
    return subprocess.Popen(
        [*([] if directly else [sys.executable, "-m", "worker.embedded"]), *command],
        env=environment | {"HEADRACE_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        text=True,
        **streams,
    )


def test_a_command_runs_with_the_services_and_ends_with_its_status(tmp_path: Path) -> None:
    code = (
        "import os, sys, psycopg, redis; psycopg.connect(os.environ['DATABASE_URL']);"
        "redis.Redis.from_url(os.environ['REDIS_URL']).ping(); sys.exit(7)"
    )
    with run(tmp_path, sys.executable, "-c", code) as process:
        assert process.wait(60) == 7


def test_sigterm_reaches_the_command_and_the_services_stop(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print(os.environ['REDIS_URL'], flush=True)\n"
        "signal.pause()"
    )
    with run(tmp_path, sys.executable, "-c", code) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with Redis.from_url(url) as redis:
            redis.ping()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5
    with Redis.from_url(url) as redis, pytest.raises(RedisConnectionError):
        redis.ping()
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()


def postmaster(data_dir: Path) -> psutil.Process:
    return psutil.Process(int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0]))


def redis_process(url: str) -> psutil.Process:
    with Redis.from_url(url) as redis:
        return psutil.Process(redis.info("server")["process_id"])


def answers(added: dict[str, str]) -> bool:
    """Whether both services are there, with what was kept in them."""
    try:
        with (
            Redis.from_url(added["REDIS_URL"]) as redis,
            psycopg.connect(added["DATABASE_URL"]) as connection,
        ):
            connection.execute("SELECT n FROM kept")
            return bool(redis.get("kept") == b"yes")
    except (RedisError, psycopg.OperationalError):
        return False


def keep(added: dict[str, str]) -> None:
    with Redis.from_url(added["REDIS_URL"]) as redis, psycopg.connect(added["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        redis.set("kept", "yes")


def test_a_server_that_is_killed_comes_back_at_its_address(tmp_path: Path) -> None:
    with services({"HEADRACE_DATA_DIR": str(tmp_path)}) as added:
        keep(added)
        for _ in range(2):
            redis_process(added["REDIS_URL"]).kill()
            postmaster(tmp_path).kill()
            eventually(lambda: answers(added), what="the servers answered again")
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()


@pytest.mark.slow
def test_a_server_that_cannot_come_back_is_given_up_in_one_line(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['REDIS_URL'], flush=True); sys.stdin.read()"
    with run(tmp_path, sys.executable, "-c", code, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process_of_redis = redis_process(process.stdout.readline().strip())
        (tmp_path / "redis" / "appendonly.aof").write_text("nonsense")
        process_of_redis.kill()
        assert process.wait(60) == 1
        (said,) = [line for line in process.stderr.read().splitlines() if "not started again" in line]
    assert f"see {tmp_path}/redis/log" in said


def test_a_server_that_is_down_does_not_delay_the_end(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['REDIS_URL'], flush=True); sys.stdin.read()"
    with run(tmp_path, sys.executable, "-c", code, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process_of_redis = redis_process(process.stdout.readline().strip())
        (tmp_path / "redis" / "appendonly.aof").write_text("nonsense")
        process_of_redis.kill()
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM


# A Postgres takes another's process for a server only if that is its own user's.
@pytest.mark.parametrize("file", ["postmaster.pid", ".s.PGSQL.5432.lock"])
def test_a_process_under_the_number_of_an_old_server_is_left_alone(tmp_path: Path, file: str) -> None:
    tmp_path.chmod(0o755)
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)}
    with services(environment) as added:
        keep(added)
        left = {name: (tmp_path / "postgres" / name).read_text() for name in STALE}
    user = "pgserver" if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "600"], user=user) as innocent:
        for name, text in left.items():
            number, _, rest = text.partition("\n")
            new = str(innocent.pid) if name == file else number
            (tmp_path / "postgres" / name).write_text(f"{new}\n{rest}")
        with services(environment) as added:
            assert answers(added)
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_what_a_power_cut_left_of_a_file_is_no_server(tmp_path: Path, text: str) -> None:
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)}
    with services(environment) as added:
        keep(added)
    for name in STALE:
        (tmp_path / "postgres" / name).write_text(text)
    with services(environment) as added:
        assert answers(added)


def test_a_cluster_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18")
    with services({"HEADRACE_DATA_DIR": str(tmp_path)}) as added:
        keep(added)


def test_a_long_path_with_signs_in_it_has_a_server(tmp_path: Path) -> None:
    for name in ("a name with % and ?", "n" * 120):
        with services({"HEADRACE_DATA_DIR": str(tmp_path / name)}) as added:
            keep(added)
            assert answers(added)


# A command that says where the services are and stays.
WAITING = """
import os, sys
print(os.environ["REDIS_URL"], flush=True)
print(os.environ["DATABASE_URL"], flush=True)
sys.stdin.read()
"""


def tree(process: "subprocess.Popen[str]", data_dir: Path) -> tuple[dict[str, str], list[psutil.Process]]:
    """Return where the services of a deployment are, and every process of it."""
    assert process.stdout is not None
    added = {name: process.stdout.readline().strip() for name in ("REDIS_URL", "DATABASE_URL")}
    keep(added)
    top = psutil.Process(process.pid)
    found = [top, *top.children(recursive=True)]
    assert {redis_process(added["REDIS_URL"]), postmaster(data_dir)} < set(found)
    return added, found


def test_what_it_started_dies_with_it(tmp_path: Path) -> None:
    with run(tmp_path, sys.executable, "-c", WAITING, stdin=subprocess.PIPE) as process:
        _, started = tree(process, tmp_path)
        process.kill()
        assert eventually(lambda: not any(one.is_running() for one in started[1:]), what="their end")
    with services({"HEADRACE_DATA_DIR": str(tmp_path)}) as added:
        assert answers(added)


def test_it_dies_with_its_own_parent_where_that_is_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "worker.embedded", "--with-parent", sys.executable, "-c", WAITING]
    shell = f"{shlex.join(command)}; true"  # so that the shell stays
    with run(tmp_path, "sh", "-c", shell, directly=True, stdin=subprocess.PIPE) as process:
        _, started = tree(process, tmp_path)
        process.kill()
        assert eventually(lambda: not any(one.is_running() for one in started[1:]), what="their end")


def test_an_environment_file_fills_in_what_is_not_set(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# urls\nDATABASE_URL=postgresql://a\nREDIS_URL=redis://b\nPORT='8123'\nHOME=away\n"
    )
    options = [f"--env-file={tmp_path / '.env'}", sys.executable, "-c"]
    code = "import os; print(*map(os.environ.get, ('DATABASE_URL', 'PORT', 'HOME')))"
    with run(tmp_path, *options, code) as process:
        said = process.communicate(timeout=60)[0]
    assert said.split() == ["postgresql://a", "8123", os.environ["HOME"]]
    with run(tmp_path, f"--env-file={tmp_path / 'none'}", "--other", *options[1:], code) as process:
        assert process.wait(60) == 2


@pytest.mark.slow
def test_everything_is_killed_and_started_again_at_once(tmp_path: Path) -> None:
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)}
    for _ in range(3):
        shutil.rmtree(tmp_path / "postgres", ignore_errors=True)
        with run(tmp_path, sys.executable, "-c", WAITING, stdin=subprocess.PIPE) as process:
            _, started = tree(process, tmp_path)
            for one in reversed(started):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            with services(environment) as added:
                assert answers(added)
