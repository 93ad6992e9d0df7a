"""The path of somebody new: README's blocks and docs/examples, run as printed against one `make up`."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fixtures.deployment import START_SECONDS, STOP_SECONDS, eventually, free_port
from worker.up import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = ROOT / "docs" / "examples"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# What no test can run as printed, by its first line, and what runs in its place.
ELSEWHERE = {
    "make demo     #": "tests/end_to_end/test_commands.py runs the demo; the tests are these",
    "HEADRACE_MODEL=/models/my-llama make up": "a model of the reader's: every other deployment here has one",
    "DATABASE_URL=postgresql://user": "servers of the reader's: every other deployment here has some",
    "make lint            #": "hours of work: tests/architecture/test_readme.py knows that each exists",
}


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A checkout with a deployment in it, and a shell there."""

    checkout: Path
    environment: dict[str, str]
    receiver_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.environment['PORT']}"

    def run(self, *command: str, **settings: str) -> str:
        """Run a command in the checkout; return what it printed."""
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=self.environment | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def as_printed(self, block: str) -> str:
        """Return a block with this deployment's ports, as other deployments run here."""
        return block.replace(":8000", f":{self.environment['PORT']}").replace(
            ":9000", f":{self.receiver_port}"
        )


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """Run `make up` in a checkout until the line that tells that all is up."""
    checkout = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in {".data", ".git", ".venv"}:
            (checkout / path.name).symlink_to(path)
    (checkout / ".venv").symlink_to(sys.prefix)
    away = {"DATABASE_URL", "REDIS_URL"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in away and not name.startswith(("HEADRACE_", "FLOWER_", "MAKE"))
    }
    receiver_port = free_port()
    environment = kept | {
        "PORT": str(free_port()),
        "FLOWER_PORT": str(free_port()),
        "RECEIVER_PORT": str(receiver_port),
        "HEADRACE_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    log = checkout / "log"
    with log.open("w") as output:
        # Its packages are installed: do not look whether there are newer ones.
        process = subprocess.Popen(
            ["make", "--old-file", ".venv/.local", "up"],
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "\nready: " in log.read_text()

        eventually(is_ready, seconds=START_SECONDS, what="ready")
        yield Newcomer(checkout, environment, receiver_port)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


@pytest.mark.slow
def test_one_line_tells_when_and_where_all_is_up(newcomer: Newcomer) -> None:
    lines = (newcomer.checkout / "log").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ready: ")]
    flower = f"http://127.0.0.1:{newcomer.environment['FLOWER_PORT']}"
    assert f"API {newcomer.url}," in line
    assert f"dashboard {newcomer.url}/dashboard" in line
    assert f"Flower {flower} (user headrace, password in {newcomer.checkout}/.data/flower_password)" in line
    assert re.search(r"model demo@[0-9a-f]{8}$", line)
    password = (newcomer.checkout / ".data" / "flower_password").read_text()
    assert httpx.get(flower, auth=("headrace", password)).status_code == 200
    assert password not in (newcomer.checkout / "log").read_text()
    assert httpx.get(f"{newcomer.url}/ready").json()["worker"] == "ok"


def test_every_block_of_readme_is_of_a_kind_that_is_tested() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "text"}
    for start in ELSEWHERE:
        assert [block for kind, block in BLOCKS if kind == "sh" and block.startswith(start)], start


@pytest.mark.slow
def test_readmes_commands_run_as_printed(newcomer: Newcomer) -> None:
    """One shell runs them all, in order; it ends at the first that fails. `headrace` reads PORT."""
    blocks = [block for kind, block in BLOCKS if kind == "sh" and not block.startswith(tuple(ELSEWHERE))]
    # `curl -s` alone says nothing about an answer that is an error.
    checked = 'curl() { command curl --fail-with-body --show-error "$@" && echo; }'
    script = "\n".join(["set -e", "trap 'kill $(jobs -p)' EXIT", checked, *blocks])
    said = newcomer.run("bash", "-c", newcomer.as_printed(script))
    assert f"receiving on http://127.0.0.1:{newcomer.receiver_port}/hook" in said
    assert '"status":"completed"' in said.replace(" ", "")
    assert said.count("def read_lines(path):") >= 0


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "python"])
def test_readmes_programs_run_as_printed(newcomer: Newcomer, block: str) -> None:
    newcomer.run(sys.executable, "-W", "ignore::ResourceWarning", "-c", newcomer.as_printed(block))


# What each example prints; those that are no programs are read by one.
PRINTS = {
    "batch.sh": r"submitted batch_\w+\n\{.*\"custom_id\"",
    "batch.py": r"yes-or-no completed '(yes|no)'",
    "file_batch.sh": r"\"custom_id\": ?\"queue\"",
    "openai_batch.py": r"completed BatchRequestCounts\(completed=3",
    "openai_chat.py": r"\S+\n(.|\n)*\S+",
    "tool_loop.py": r"(apples|pears) look_up \{\"fruit\": ?\"(apples|pears)\"\} -> \{\"in_stock\": [07]\}",
    "openai_tools.py": r"label (good|bad|neutral) (True|False)\n(stop|length|tool_calls)",
}
READ_BY = {
    "prompts.jsonl": EXAMPLES / "batch.py",
    "requests.jsonl": EXAMPLES / "openai_batch.py",
    "prompts.txt": ROOT / "README.md",
    "README.md": ROOT / "README.md",
    "pairs.jsonl": ROOT / "docs" / "caching.md",
}


# tests/clients runs them, in environments that have their packages.
OF_CLIENTS = {"lm_eval_batch.py", "duckdb_table.py", "pandas_table.py", "datasets_table.py"}


def test_every_example_is_run() -> None:
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert names == set(PRINTS) | set(READ_BY) | {"webhook_receiver.py"} | OF_CLIENTS
    for name, reader in READ_BY.items():
        assert name in reader.read_text()


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs(newcomer: Newcomer, name: str) -> None:
    program = shutil.which("sh") if name.endswith(".sh") else sys.executable
    said = newcomer.run(str(program), f"docs/examples/{name}", HEADRACE_URL=newcomer.url)
    assert re.search(PRINTS[name], said, re.DOTALL)


def test_the_example_of_a_receiver_knows_events_from_forgeries(newcomer: Newcomer) -> None:
    receiver = f"http://127.0.0.1:{newcomer.receiver_port}/hook"
    with subprocess.Popen(
        [sys.executable, "docs/examples/webhook_receiver.py"],
        cwd=newcomer.checkout,
        env=newcomer.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "receiving" in process.stdout.readline()
        forged = {"webhook-id": "evt_1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
        assert httpx.post(receiver, content=b"{}", headers=forged).status_code == 401
        assert httpx.post(receiver, content=b"{}").status_code == 401
        batch = {"prompts": ["import os"], "max_tokens": 4, "callback_url": receiver}
        batch_id = httpx.post(f"{newcomer.url}/v1/batch/async", json=batch).json()["batch_id"]
        line = process.stdout.readline()
        process.terminate()
    assert line.startswith(f"batch.completed {batch_id} ")


def test_the_demo_model_chats(newcomer: Newcomer) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "def read_lines(path):"}],
        "max_tokens": 8,
    }
    answer = httpx.post(f"{newcomer.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
