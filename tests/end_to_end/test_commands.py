"""What the Makefile runs, run as it runs it: on services of its own, in a directory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.deployment import free_port
from worker.up import ROOT


def run(data_dir: Path, *command: str) -> dict[str, object]:
    """Run a command under worker.embedded; return the JSON of its last line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = kept | {
        "DATABASE_URL": "",
        "REDIS_URL": "",
        "HEADRACE_DATA_DIR": str(data_dir),
        "PORT": str(free_port()),
        "FLOWER_PORT": str(free_port()),
    }
    done = subprocess.run(
        [sys.executable, "-m", "worker.embedded", sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    last: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return last


@pytest.mark.slow
def test_the_demo_runs_a_real_batch_with_a_webhook(tmp_path: Path) -> None:
    summary = run(tmp_path, "api.cli.demo")
    assert (summary["status"], summary["webhook_verified"]) == ("completed", True)
    assert summary["requests"] == 240
    assert isinstance(summary["output_tokens"], int)
    assert summary["output_tokens"] > 5000


@pytest.mark.slow
def test_the_service_bench_compares_both_sides(tmp_path: Path) -> None:
    summary = run(tmp_path, "benchmarks.service", "--requests", "16", "--turns", "1")
    assert set(summary) == {"engine_tok_s", "service_tok_s", "ratio"}
