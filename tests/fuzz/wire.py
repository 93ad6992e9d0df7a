"""`python -m tests.fuzz.wire --requests 20000`: raw requests to a running deployment; JSON at the end.

A finding is a 5xx, no answer within five seconds, memory that grows, a process that dies or writes a
traceback, and accepted work that does not end.
"""

import argparse
import json
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.fuzz import requests
from tests.fuzz.chaos import Chaos
from tests.fuzz.requests import Sent
from tests.fuzz.target import WAIT_SECONDS, Target, aftermath, target

HANG_SECONDS = 5.0
WAITS = re.compile(rb"POST /v1/(generate|chat|completions|embeddings|batch/sync)")
LOOK_SECONDS = 0.25
MAX_GROWTH_BYTES = 200 << 20  # of the API, from the first hundredth of the requests on


@dataclass(slots=True)
class Tally:
    """What was answered, and what should not have been."""

    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, sent: Sent, seed: str, status: str, seconds: float) -> None:
        """Count an answer; a 5xx, or none in time, is a finding."""
        with self._lock:
            self.statuses[status] += 1
            self.slowest = max(self.slowest, seconds)
            if status.startswith("5") or status == "nothing in time":
                self.findings.append(
                    f"{seed} ({sent.kind}): {status} after {seconds:.1f} s: {sent.data[:300]!r}"
                )


def send(address: tuple[str, int], sent: Sent) -> str:
    """Send bytes and return the status that is answered."""
    # What is generated may take as long as the deployment lets a client wait.
    seconds = HANG_SECONDS + (float(WAIT_SECONDS) if WAITS.match(sent.data) else 0.0)
    with socket.create_connection(address, timeout=seconds) as connection:
        try:
            connection.sendall(sent.data)
            if sent.is_cut_off:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has answered, and closed, before it had read everything
        try:
            head = b""
            while b"\r\n" not in head:
                received = connection.recv(4096)
                if not received:
                    return "closed"
                head += received
        except TimeoutError:
            return "nothing in time"
        except OSError:
            return "reset"
        words = head.split(None, 2)
        return words[1].decode("latin-1") if len(words) > 1 and words[0].startswith(b"HTTP/") else "no HTTP"


def throw(shot: Target, count: int, *, seed: str, jobs: int, tally: Tally) -> None:
    """Send so many requests, several at a time."""
    parts = urlsplit(shot.url)
    address = (parts.hostname or "", parts.port or 0)
    ids = requests.prepare(shot)

    def one(number: int) -> None:
        its = f"{seed}/{number}"
        sent = requests.make(Chaos(its), shot.key, ids)
        began = time.monotonic()
        tally.note(sent, its, send(address, sent), time.monotonic() - began)

    with ThreadPoolExecutor(jobs) as executor:
        for _ in executor.map(one, range(count)):
            pass


class Memory(threading.Thread):
    """Watches how much the API holds."""

    def __init__(self, shot: Target) -> None:
        super().__init__(daemon=True)
        self._shot = shot
        self.peak = shot.memory()
        self._is_over = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self._is_over.wait(LOOK_SECONDS):
            self.peak = max(self.peak, self._shot.memory())

    def stop(self) -> int:
        """Return the most that was seen."""
        self._is_over.set()
        self.join()
        return self.peak


def main() -> int:
    """Run a deployment, send the requests, print what came of them; the status is 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.wire", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and data, which then stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-", ignore_cleanup_errors=True) as temporary:
        directory = arguments.keep or Path(temporary)
        directory.mkdir(exist_ok=True, parents=True)
        directory.chmod(0o755)  # Postgres may run as another user
        with target(directory.resolve()) as shot:
            return _run(shot, arguments.requests, arguments.seed, arguments.jobs)


def _run(shot: Target, count: int, seed: str, jobs: int) -> int:
    started, tally = time.monotonic(), Tally()
    warm = max(1, count // 100)
    throw(shot, warm, seed=f"{seed}.warm", jobs=jobs, tally=tally)
    before, memory = shot.memory(), Memory(shot)
    memory.start()
    throw(shot, count - warm, seed=seed, jobs=jobs, tally=tally)
    peak, after = memory.stop(), shot.memory()
    findings = tally.findings + aftermath(shot)
    if max(peak, after) - before > MAX_GROWTH_BYTES:
        findings.append(f"the API grew from {before} to {after} bytes, {peak} in between")
    for finding in findings[:50]:
        print(finding)
    print(
        json.dumps(
            {
                "requests": count,
                "statuses": dict(sorted(tally.statuses.items())),
                "findings": len(findings),
                "slowest_s": round(tally.slowest, 3),
                "rss_before_mb": round(before / 1e6, 1),
                "rss_peak_mb": round(peak / 1e6, 1),
                "rss_after_mb": round(after / 1e6, 1),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
