"""What the seeds have come to: a file each, a table of recoveries, and one line of JSON for all."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(slots=True)
class SeedReport:
    """One schedule: each fault with the seconds until work had resumed, and what was found wrong."""

    seed: int
    faults: list[tuple[str, float]] = field(default_factory=list)
    seconds: float = 0.0  # the whole run
    num_requests: int = 0  # accepted
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)  # what else came to pass

    def write(self, directory: Path) -> None:
        """Keep it, whole or not at all."""
        unfinished = directory / f".seed{self.seed}.json"
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.rename(_file(directory, self.seed))

    @classmethod
    def read(cls, directory: Path, seed: int) -> "SeedReport | None":
        """Return what was kept of a seed."""
        try:
            kept = json.loads(_file(directory, seed).read_text())
        except FileNotFoundError:
            return None
        return cls(**kept | {"faults": [tuple(fault) for fault in kept["faults"]]})


def _file(directory: Path, seed: int) -> Path:
    return directory / f"seed{seed}.json"


def is_clean(seeds: Sequence[SeedReport]) -> bool:
    """Whether every promise was kept."""
    return not any(one.lost or one.duplicated or one.broken for one in seeds)


def _recoveries(seeds: Sequence[SeedReport]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for kind, seconds in sorted(fault for one in seeds for fault in one.faults):
        found.setdefault(kind, []).append(seconds)
    return found


def last_line(seeds: Sequence[SeedReport]) -> str:
    """Return the sums as JSON."""
    seconds = _recoveries(seeds)
    return json.dumps(
        {
            "faults": sum(map(len, seconds.values())),
            "requests": sum(one.num_requests for one in seeds),
            "lost": sum(len(one.lost) for one in seeds),
            "duplicated": sum(len(one.duplicated) for one in seeds),
            "broken": sum(len(one.broken) for one in seeds),
            "worst_recovery_s": max((found[-1] for found in seconds.values()), default=None),
            "recovery_s": {
                kind: {"faults": len(found), "median": round(median(found), 2), "worst": found[-1]}
                for kind, found in seconds.items()
            },
        }
    )


def lines(seeds: Sequence[SeedReport]) -> list[str]:
    """Return what a person reads: a row for each kind of fault, then what was found wrong."""
    rows = [f"{'fault':<28} {'times':>5} {'median s':>9} {'worst s':>8}"]
    rows += [
        f"{kind:<28} {len(found):>5} {median(found):>9.2f} {found[-1]:>8.2f}"
        for kind, found in _recoveries(seeds).items()
    ]
    for one in seeds:
        wrong = {"lost": one.lost, "duplicated": one.duplicated, "broken": one.broken}
        rows += [f"seed {one.seed}, {kind}: {what}" for kind, found in wrong.items() for what in found[:20]]
    return rows
