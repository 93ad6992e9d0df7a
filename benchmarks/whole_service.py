"""Runs every measurement of the service one after the other: `make bench-service`. The last line is JSON.

Each measurement is a module that runs in its own process, with its own embedded services and data, so that
none depends on leftovers of another. A failed one is named, and the others still run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """A benchmark module to run, and new names for the fields of its JSON line."""

    arguments: Sequence[str]
    fields: dict[str, str]


def measurements(large: int, turns: int) -> list[Measurement]:
    """Return the measurements in the order they run; without the large file if `large` is 0."""
    claim = "claim_p99_ms"
    found = [
        Measurement(
            ("ingestion", "--requests=50000"),
            {
                "accept_s": "accept_50k_s",
                "durable_s": "durable_50k_s",
                "rss_growth_mb": "accept_50k_rss_mb",
                "poll_p99_ms": "poll_p99_ms_50k",
            },
        ),
        Measurement(("ingestion", "--requests=100000"), {claim: "claim_p99_ms_100k"}),
        Measurement(
            ("ingestion", f"--requests={large}"),
            {
                "accept_s": "accept_1m_s",
                "rss_mb": "accept_1m_rss_mb",
                "files_rss_mb": "files_1m_rss_mb",
                "poll_p99_ms": "poll_p99_ms_1m",
                claim: "claim_p99_ms_1m",
            },
        ),
        Measurement(("callbacks",), {"webhook_p50_ms": "webhook_p50_ms"}),
        Measurement(
            ("cancelling",),
            {"cancel_ms": "cancel_ms", "cancel_worst_ms": "cancel_worst_ms", "step_ms": "step_ms"},
        ),
        Measurement(
            ("interactive",),
            {
                "interactive_ttft_p95_idle_ms": "interactive_ttft_p95_idle_ms",
                "interactive_ttft_p95_loaded_ms": "interactive_ttft_p95_loaded_ms",
                "batch_throughput_lost": "batch_throughput_lost",
            },
        ),
        Measurement(("service", f"--turns={turns}"), {"ratio": "service_over_engine"}),
    ]
    return [one for one in found if one.arguments[-1] != "--requests=0"]


def run(measurement: Measurement, data_dir: Path) -> dict[str, Any] | None:
    """Run one measurement on its own services; return its last line, or None if it failed."""
    name, *arguments = measurement.arguments
    module = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", "worker.embedded", *module],
        env=os.environ
        | {
            "HEADRACE_DATA_DIR": str(data_dir),
            "DATABASE_URL": "",
            "DATABASE_DIRECT_URL": "",
            "REDIS_URL": "",
        },
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line
    if process.returncode:
        print(f"{name} failed with status {process.returncode}", file=sys.stderr)
        return None
    return dict(json.loads(last))


def main(arguments: list[str] | None = None) -> int:
    """Run all measurements and print the results by the names in docs/benchmarks.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=int, default=1_000_000, help="lines of the largest file; 0: none")
    parser.add_argument("--turns", type=int, default=4, help="of the service against the bare engine")
    parser.add_argument("--only", help="the one module to run")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    summary: dict[str, Any] = {}
    for measurement in measurements(options.large, options.turns):
        if options.only not in {None, measurement.arguments[0]}:
            continue
        print(f"--- {' '.join(measurement.arguments)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as directory:
            found = run(measurement, Path(directory))
        summary |= {
            theirs: None if found is None else found.get(ours) for ours, theirs in measurement.fields.items()
        }
    polls = [summary[name] for name in ("poll_p99_ms_50k", "poll_p99_ms_1m") if summary.get(name) is not None]
    if polls:
        summary["poll_p99_ms"] = max(polls)
    print(json.dumps(summary | {"seconds": round(time.monotonic() - began)}))
    return 1 if None in summary.values() else 0


if __name__ == "__main__":
    sys.exit(main())
