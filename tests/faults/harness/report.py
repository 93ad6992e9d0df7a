"""What a run has come to: a table of recoveries, and one line of JSON."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from tests.faults.harness.invariants import Findings


@dataclass(slots=True)
class Report:
    """Sums over the seeds."""

    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    findings: list[Findings] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # what was found while faults went on

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken and not any(one.lost or one.duplicated or one.broken for one in self.findings)

    def last_line(self) -> str:
        """Return the sums as JSON."""
        seconds = {kind: sorted(found) for kind, found in sorted(self.recoveries.items())}
        return json.dumps(
            {
                "faults": sum(map(len, seconds.values())),
                "requests": sum(one.num_requests for one in self.findings),
                "lost": sum(len(one.lost) for one in self.findings),
                "duplicated": sum(len(one.duplicated) for one in self.findings),
                "broken": len(self.broken) + sum(len(one.broken) for one in self.findings),
                "worst_recovery_s": max((found[-1] for found in seconds.values()), default=None),
                "recovery_s": {
                    kind: {"faults": len(found), "median": round(median(found), 2), "worst": found[-1]}
                    for kind, found in seconds.items()
                },
            }
        )

    def lines(self) -> list[str]:
        """Return what a person reads: a row for each kind of fault, then what was found wrong."""
        rows = [f"{'fault':<28} {'times':>5} {'median s':>9} {'worst s':>8}"]
        rows += [
            f"{kind:<28} {len(found):>5} {median(found):>9.2f} {max(found):>8.2f}"
            for kind, found in sorted(self.recoveries.items())
        ]
        for number, one in enumerate(self.findings):
            wrong = {"lost": one.lost, "duplicated": one.duplicated, "broken": one.broken}
            rows += [f"seed {number}, {kind}: {what}" for kind, found in wrong.items() for what in found[:20]]
        return rows + [f"broken: {what}" for what in self.broken]
