"""`python -m tests.fuzz --inputs 1000000`: every parser of strangers' input. Ends with JSON.

One input again: `python -m tests.fuzz --only SURFACE --again SEED`, as a finding names them.
"""

import argparse
import json
import sys
import time
from collections import Counter

from tests.fuzz import surfaces
from tests.fuzz.runner import Report, fuzz


def main() -> int:
    """Run the inputs and print what came of them; the status is 1 if there is a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--only", nargs="+", choices=sorted(surfaces.BY_NAME), default=list(surfaces.BY_NAME))
    parser.add_argument("--again", help="the seed of one input")
    arguments = parser.parse_args()
    if arguments.again is not None:
        print(surfaces.run(arguments.only[0], arguments.again))
        return 0
    started = time.monotonic()
    report = fuzz(arguments.only, arguments.inputs, seed=arguments.seed, jobs=arguments.jobs)
    _print(report, time.monotonic() - started)
    return 1 if report.findings else 0


def _print(report: Report, seconds: float) -> None:
    for name, count in report.inputs.items():
        each, slowest = 1e6 * report.seconds[name] / max(1, count), 1e3 * report.slowest[name]
        print(
            f"{name:<14} {count:>8} inputs, {report.accepted[name]:>8} accepted, {each:8.0f} us each,"
            f" slowest {slowest:6.0f} ms, memory {report.growth[name] / 2**20:+.1f} MiB"
        )
    kinds = Counter(finding.kind for finding in report.findings)
    for kind, number in kinds.most_common():
        first = next(finding for finding in report.findings if finding.kind == kind)
        print(f"{number} x {kind}\n    first: --only {first.surface} --again {first.seed}")
        print(f"    {first.message[:300]}")
    print(
        json.dumps(
            {
                "inputs": sum(report.inputs.values()),
                "accepted": sum(report.accepted.values()),
                "findings": len(report.findings),
                "kinds": dict(kinds),
                "slowest_s": round(max(report.slowest.values(), default=0.0), 3),
                "peak_rss_mb": round(report.peak_bytes / 1e6, 1),
                "growth_mb": round(sum(report.growth.values()) / 1e6, 1),
                "seconds": round(seconds, 1),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
