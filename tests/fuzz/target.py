"""What inputs are thrown at: a whole deployment on services of its own, with keys, and its API's memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.deployment import Deployment, deployment
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.embedded import services
from worker.settings import settings
from worker.up import ROOT

PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "files")
# A synchronous request to a tiny model that waits longer than this waits for something else.
WAIT_SECONDS = "20"
END_SECONDS = 300.0
LIVE = """
    SELECT id, status FROM batches
    WHERE status IN ('pending', 'processing', 'cancelling') AND paused_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A running deployment and a key that may do everything."""

    running: Deployment
    key: str

    @property
    def url(self) -> str:
        """Where the API listens."""
        return str(self.running.client.base_url)

    @property
    def api(self) -> psutil.Process:
        """The API's process."""
        return psutil.Process(self.running.processes["web"].pid)

    def memory(self) -> int:
        """Return the bytes that the API holds in memory."""
        return int(self.api.memory_info().rss)


@contextmanager
def target(directory: Path, **env: str) -> Iterator[Target]:
    """Run a deployment in a directory, its logs beside it; a second worker serves the model "other"."""
    model, other = (
        write_tiny_llama(directory / name, seed=seed) for seed, name in enumerate(("model", "other"))
    )
    for checkpoint in (model, other):
        (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    logs = directory / "logs"
    logs.mkdir()
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    given = {"HEADRACE_DATA_DIR": str(directory / "data"), "HEADRACE_AUTH": "keys"}
    with services(given) as added:
        os.environ.update(given | added)
        settings.cache_clear()
        with deployment(
            logs, model, processes=PROCESSES, HEADRACE_WAIT_SECONDS=WAIT_SECONDS, **env
        ) as running:
            running.start_other(other)
            key = _key(running)
            running.client.headers["Authorization"] = f"Bearer {key}"
            yield Target(running, key)


def _key(running: Deployment) -> str:
    command = [sys.executable, "-m", "api.cli", "keys", "create", "fuzz", "--json"]
    for scope in ("read", "submit", "admin", "deployment"):
        command += ["--scope", scope]
    made = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=running.environment
    )
    return str(json.loads(made.stdout)["key"])


def aftermath(shot: Target) -> list[str]:
    """Return what the processes have come to: the dead, what they complained of, work without an end."""
    running = shot.running
    found = [
        f"{name} died"
        for name, process in running.processes.items()
        if name != "release" and process.poll() is not None
    ]
    deadline = time.monotonic() + END_SECONDS
    while (live := running.sql(LIVE)) and time.monotonic() < deadline:
        time.sleep(1)
    found += [f"{batch_id} is {status} for ever" for batch_id, status in live]
    for name in running.processes:
        for line in running.log(name).splitlines():
            if "Traceback (most recent call last)" in line or "unexpected error" in line:
                found.append(f"{name}: {line[:200]}")
    return found
