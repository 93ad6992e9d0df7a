"""Polls an address from a separate process, so that the caller's other work does not slow a poll."""

import json
import select
import subprocess
import sys
import time
from typing import Self

import httpx

PAUSE_SECONDS = 0.02


class Polls:
    """Process that polls one path until it is given the next; leave its `with` block, then read `seconds`."""

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.polling", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its imports are done

    def poll(self, path: str) -> None:
        """Switch the polling to this path."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        answer, _unused = self._process.communicate()
        self.seconds = json.loads(answer)


def percentile_ms(seconds: list[float], percent: int) -> float:
    """Return a percentile in milliseconds; there must be at least one measurement."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


def main(url: str) -> int:
    """Poll the path last read from standard input until that ends; print the seconds of each poll."""
    path = None
    seconds = []
    is_over = False
    with httpx.Client(base_url=url, timeout=60) as client:
        print("ready", flush=True)
        while not is_over:
            if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
                line = sys.stdin.readline().strip()
                is_over = not line
                path = line or path
            if path is not None:
                started = time.perf_counter()
                client.get(path).raise_for_status()
                seconds.append(time.perf_counter() - started)
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
