"""Start the process of a trial and read its report. Must not load the engine into this process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from worker.child import with_parent

MODEL = "HEADRACE_MODEL"
TRIAL = "worker.tuning.trial"
Report = Callable[[int, float], bool]  # a quarter's number and its tokens a second: whether to go on


class TrialFailedError(Exception):
    """A trial has no results: it crashed, ran out of memory or time, or the engine refuses its settings."""


class TrialPrunedError(Exception):
    """A trial was ended early, because others were faster at the same point."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial measured."""

    tokens_per_second: float  # of output
    latency_p95_ms: float  # from a request's submission to its end
    latency_mean_ms: float
    peak_memory_bytes: int
    num_failed: int  # requests
    outputs: tuple[str | None, ...]  # by request; None: it failed


@dataclass(frozen=True, slots=True)
class Trials:
    """Runs trials of one workload, each in a process of its own, one at a time."""

    model: Path
    requests: Path  # written by worker.tuning.requests
    concurrency: int
    limit_seconds: int

    def run(self, settings: Mapping[str, str], report: Report = lambda *_: True) -> TrialResult:
        """Run the workload under these settings, by variable; an empty value unsets one.

        Raises:
            TrialFailedError: it has no results.
            TrialPrunedError: `report` has said so.

        """
        command = [sys.executable, "-m", TRIAL, str(self.requests)]
        with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            process = subprocess.Popen(
                with_parent([*command, str(self.concurrency), str(self.limit_seconds)]),
                env=os.environ | {MODEL: str(self.model), **settings},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            try:
                result = _read(process, report)
                if result is None:
                    process.wait()  # it is ending, and its status says why
            finally:
                process.kill()
                status = process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            if result is None:
                errors.seek(0)
                raise TrialFailedError(self._reason(status, errors.read()))
        return result

    def _reason(self, status: int, errors: str) -> str:
        if status == -signal.SIGALRM:
            return f"it took longer than {self.limit_seconds} s"
        said = errors.strip().splitlines()
        if status == -signal.SIGKILL:
            return "it was killed, as the kernel does when memory runs out"
        end = f"signal {-status}" if status < 0 else f"status {status}"
        return said[-1] if said else f"it ended with {end}"


def _read(process: "subprocess.Popen[str]", report: Report) -> TrialResult | None:
    """Return the results; None: the process ended without them."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    for line in process.stdout:
        if not line.startswith("{"):
            continue  # a library says something
        said = json.loads(line)
        if "outputs" in said:
            return TrialResult(**said | {"outputs": tuple(said["outputs"])})
        if not report(said["part"], said["tokens_per_second"]):
            raise TrialPrunedError(f"after quarter {said['part']}")
    return None
