import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis

from tests.fixtures.deployment import eventually
from worker.embedded import EmbeddedError, services


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


def test_one_directory_has_one_user(tmp_path: Path) -> None:
    environment = {"HEADRACE_DATA_DIR": str(tmp_path)}
    with (
        services(environment),
        pytest.raises(EmbeddedError, match="HEADRACE_DATA_DIR"),
        services(environment),
    ):
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
    assert kept == ["flower_password", "secret_key", "webhook_secret"]
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


def run(data_dir: Path, *command: str) -> "subprocess.Popen[str]":
    environment = {k: v for k, v in os.environ.items() if k not in {"DATABASE_URL", "REDIS_URL"}}
    return subprocess.Popen(
        [sys.executable, "-m", "worker.embedded", *command],
        env=environment | {"HEADRACE_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        text=True,
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


def test_what_a_killed_parent_left_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import os, redis, time\n"
        "redis.Redis.from_url(os.environ['REDIS_URL']).set('kept', 'yes')\n"
        "print('up', flush=True); time.sleep(2)"
    )
    with run(tmp_path, sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        process.wait()
    with services({"HEADRACE_DATA_DIR": str(tmp_path)}) as added:
        with Redis.from_url(added["REDIS_URL"]) as redis:
            assert redis.get("kept") == b"yes"
        with psycopg.connect(added["DATABASE_URL"]) as connection:
            assert eventually(lambda: connection.execute("SELECT 1").fetchone()) == (1,)
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()
