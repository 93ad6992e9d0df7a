"""Measure settings on a workload, beside the exact ones: speed, memory, and what they cost in quality."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from worker.quality.comparison import compare_outputs
from worker.quality.expected import Expected
from worker.tuning.space import Setting
from worker.tuning.trial_process import Report, TrialResult, Trials


@dataclass(frozen=True, slots=True)
class QualityLoss:
    """How much worse than the exact settings': a share of requests, with the interval that holds its truth.

    If the workload has reference answers, it is the share that is right under the exact settings less the
    share that is right now; without any, it is the share of outputs that differ.
    """

    mean: float
    low: float
    high: float
    num_requests: int  # that it was measured on


@dataclass(frozen=True, slots=True)
class MeasuredSetting:
    """A setting, and what it was measured to give."""

    setting: Setting
    result: TrialResult
    loss: QualityLoss


@dataclass(slots=True)
class Measurer:
    """Runs trials and compares each with the first, which has the exact settings."""

    trials: Trials
    exact: Setting
    expected: Mapping[int, Expected]  # by number of the request
    _reference: TrialResult | None = field(default=None, init=False)

    def reference(self) -> MeasuredSetting:
        """Return the measurement of the exact settings; raises TrialFailedError."""
        if self._reference is None:
            self._reference = self.trials.run(self.exact)
        return MeasuredSetting(self.exact, self._reference, self.loss(self._reference))

    def measure(self, setting: Setting, report: Report = lambda *_: True) -> MeasuredSetting:
        """Run a trial; raises TrialFailedError and TrialPrunedError as `Trials.run` does."""
        self.reference()
        result = self.trials.run(setting, report)
        return MeasuredSetting(dict(setting), result, self.loss(result))

    def loss(self, result: TrialResult) -> QualityLoss:
        """Return the loss of a result beside the reference."""
        assert self._reference is not None  # noqa: S101 - every caller has run it
        found = compare_outputs(
            _by_name(self._reference.outputs),
            _by_name(result.outputs),
            {str(number): one for number, one in self.expected.items()},
        )
        if found.difference is not None:
            low, high = found.difference_interval
            return QualityLoss(0 - found.difference, -high, -low, found.num_scored)
        low, high = found.agreement_interval
        return QualityLoss(1 - (found.agreement or 0.0), 1 - high, 1 - low, found.num_lines)


def _by_name(outputs: Sequence[str | None]) -> dict[str, str | None]:
    return {str(number): output for number, output in enumerate(outputs)}
