"""Define what a study aims at, and what it keeps of its trials. Knows no Optuna."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from worker.tuning.measuring import MeasuredSetting
from worker.tuning.space import Setting

RUNNING = "running"  # the state of a trial that has not ended


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """What the study keeps of a trial that ran to its end."""

    tokens_per_second: float
    latency_p95_ms: float
    latency_mean_ms: float
    peak_memory_bytes: int
    loss: float
    loss_low: float
    loss_high: float

    @classmethod
    def of(cls, measured: MeasuredSetting) -> Self:
        """Return the figures of a measurement."""
        result, loss = measured.result, measured.loss
        return cls(
            result.tokens_per_second,
            result.latency_p95_ms,
            result.latency_mean_ms,
            result.peak_memory_bytes,
            loss.mean,
            loss.low,
            loss.high,
        )

    @property
    def objectives(self) -> tuple[float, float, float]:
        """The values that the study searches by, as worker.tuning.study directs it."""
        return self.tokens_per_second, self.latency_p95_ms, self.loss


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial of a study: its setting, how it stands, and its figures once it has ended well."""

    number: int
    setting: Setting
    state: str  # running, complete, pruned or failed
    figures: TrialFigures | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Objective:
    """The most tokens a second, under constraints; None: no such constraint.

    The interval of the quality loss must lie below `max_quality_loss`.
    """

    max_latency_p95_ms: float | None = None
    max_quality_loss: float | None = None
    min_tokens_per_second: float | None = None

    def excesses(self, found: TrialFigures) -> dict[str, float]:
        """Return by how much each constraint is missed, as a share of it; 0 or less if it is met."""
        excesses = {}
        if self.max_latency_p95_ms is not None:
            excesses["latency"] = found.latency_p95_ms / self.max_latency_p95_ms - 1
        if self.max_quality_loss is not None:
            excesses["quality"] = found.loss_high - self.max_quality_loss
        if self.min_tokens_per_second is not None:
            excesses["throughput"] = 1 - found.tokens_per_second / self.min_tokens_per_second
        return excesses

    def is_met(self, found: TrialFigures) -> bool:
        """Return whether a trial meets every constraint."""
        return all(excess <= 0 for excess in self.excesses(found).values())


def speed(record: TrialRecord) -> float:
    """Return the tokens a second of a trial; 0 if it has no figures."""
    return 0.0 if record.figures is None else record.figures.tokens_per_second


def pareto_front(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that no other one beats in every objective, the fastest first."""
    ended = [one for one in records if one.figures is not None]
    best = [one for one in ended if not any(_beats(other, one) for other in ended)]
    return sorted(best, key=speed, reverse=True)


def _beats(one: TrialRecord, other: TrialRecord) -> bool:
    """Return whether a trial is better than another in an objective, and worse in none."""
    ours, theirs = _costs(one), _costs(other)
    return ours != theirs and all(mine <= its for mine, its in zip(ours, theirs, strict=True))


def _costs(record: TrialRecord) -> tuple[float, ...]:
    assert record.figures is not None  # noqa: S101 - of trials that ran to their end
    rate, latency, loss = record.figures.objectives
    return -rate, latency, loss
