"""Unmodified `openai` clients, an old and a new one, against a whole deployment."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.deployment import Deployment, deployment
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.up import ROOT

# `make test` installs the old client into a directory of its own: two versions fit no environment.
CLIENTS = {"1.109.1": Path(sys.prefix) / "openai-1", "3.52.0": None}

Play = Callable[..., str]


@pytest.fixture(scope="package")  # as in tests/end_to_end
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    data_dir = tmp_path_factory.mktemp("data")
    template = "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}"
    template += "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    model = write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))
    (model / "chat_template.jinja").write_text(template)
    with deployment(
        tmp_path_factory.mktemp("logs"),
        model,
        processes=("web", "gpu", "callbacks", "dispatcher", "files"),
        HEADRACE_DATA_DIR=str(data_dir),
        HEADRACE_MAX_FILE_BYTES=str(4 << 20),
    ) as started:
        yield started


@pytest.fixture(params=[pytest.param("1.109.1", marks=pytest.mark.slow), "3.52.0"])
def play(request: pytest.FixtureRequest, running: Deployment) -> Play:
    """Run a scene of tests/contract/scenes.py with one of the clients."""
    version = str(request.param)
    directory = CLIENTS[version]
    if directory is not None and not (directory / "openai").exists():
        pytest.fail(f"openai {version} is not in {directory}: `make test` puts it there")
    paths = [str(ROOT)] if directory is None else [str(directory), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(scene: str, *arguments: str) -> str:
        base = str(running.client.base_url)
        secret = running.environment["HEADRACE_WEBHOOK_SECRET"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.contract.scenes", version, base, secret, scene, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    return run
