"""The files that each image carries are enough: every process runs from a copy of them, and is well.

What this cannot show: that the images build, and that a container runs as its user.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.docker.dockerfiles import lay_out, read_dockerfile, stages
from tests.fixtures.deployment import eventually, free_port
from worker.settings import settings
from worker.up import ROOT, read_procfile

pytestmark = pytest.mark.slow

# What the API's image does not install: importing one must fail there.
WITHOUT_ENGINE = ("torch", "numpy", "safetensors", "transformers")
PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "files", "flower")


@dataclass(frozen=True, slots=True)
class Images:
    """What /app holds in either image, and what its processes are told."""

    directory: Path
    environment: dict[str, str]

    def start(self, process: str, command: str) -> "subprocess.Popen[str]":
        """Start a command in the image of a process."""
        name = "worker" if process == "gpu" else "api"
        app = self.directory / name
        paths = [app] if name == "worker" else [app, self.directory / "missing"]
        return subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=app,
            env=self.environment
            | {
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, process: str, command: str) -> tuple[int, str]:
        """Run a command to its end; return its exit status and what it said."""
        started = self.start(process, command)
        said, _ = started.communicate(timeout=240)
        return started.returncode, said

    def is_well(self, process: str) -> bool:
        """Run a process's health check."""
        return self.run(process, f"python docker/health.py {process}")[0] == 0


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    directory = tmp_path_factory.mktemp("images")
    for name in ("api", "worker"):
        lay_out(stages(read_dockerfile(ROOT / "docker" / f"{name}.Dockerfile"))[-1], directory / name)
    (directory / "missing").mkdir()
    for module in WITHOUT_ENGINE:
        text = f'raise ModuleNotFoundError("the image has no {module}", name="{module}")\n'
        (directory / "missing" / f"{module}.py").write_text(text)
    database = f"headrace_{uuid4().hex[:12]}"
    address = make_url(settings().direct_url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}")  # type: ignore[call-overload]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") and name != "PYTHONPATH"
    }
    environment |= {
        "DATABASE_URL": address.set(database=database).render_as_string(hide_password=False),
        "REDIS_URL": settings().redis_url.rpartition("/")[0] + "/2",
        "PORT": str(free_port()),
        "FLOWER_PORT": str(free_port()),
        "HEADRACE_THREADS": "1",
    }
    return Images(directory, environment)


@pytest.fixture(scope="module")
def running(images: Images) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    commands = read_procfile(ROOT / "Procfile")
    status, said = images.run("release", commands["release"])
    assert status == 0, said
    started = {name: images.start(name, commands[name]) for name in PROCESSES}
    yield started
    stop(*started.values())


def stop(*processes: "subprocess.Popen[str]") -> list[int]:
    """Send SIGTERM to all that still run; return the exit status of each."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.communicate(timeout=90)
    return [process.returncode for process in processes]


def test_a_health_check_fails_before_its_process_runs(images: Images) -> None:
    """A check that always says yes is no check."""
    assert not any(images.is_well(process) for process in PROCESSES)


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_runs_from_its_image_and_ends_when_it_is_told(
    images: Images, running: dict[str, "subprocess.Popen[str]"], process: str
) -> None:
    """A module that an image lacks, or torch behind an import of the API's, stops a process at its start.

    Docker and Kubernetes count any other status than 0 as a crash.
    """

    def is_well() -> bool:
        assert running[process].poll() is None, running[process].communicate()[0]
        return images.is_well(process)

    eventually(is_well, what=f"a healthy {process}")
    assert stop(running[process]) == [0]
