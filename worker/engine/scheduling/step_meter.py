"""Measures each Step's time and charges it to the tokens in it. Knows no tensors."""

import time
from collections import deque
from dataclasses import dataclass

from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.step_costs import CostEstimator


@dataclass(slots=True, eq=False)
class _Beside:
    """A Step that runs beside others, with its share of the time so far."""

    plan: StepPlan
    seconds: float = 0.0


class StepMeter:
    """Charges each Step when it has ended; never waits for the device.

    The host sees the end of a Step that runs ahead one `Engine.step` later. The time of these calls since the
    previous Step's end is close to the Step's own time. Step costs are learned from one end to the next while
    there is work, so they include the host's work between Steps.
    """

    def __init__(self, stats: EngineStats, *, num_rows: int, counts_work: bool = False) -> None:
        self._stats = stats
        self._counts_work = counts_work  # for `worked_seconds`: to ask the system takes a microsecond
        self._num_rows = num_rows
        self._open: deque[tuple[StepPlan, int]] = deque()  # with its rows of padding, oldest first
        self._began_at = 0.0
        self._worked_before = 0.0  # seconds
        self._carried_seconds = 0.0
        self._beside: list[_Beside] = []
        self._shared_at = 0.0
        self._busy_since: float | None = None  # end of the previous Step; None while idle
        self.costs = CostEstimator()

    def resume(self) -> None:
        """Record that there is work; call it before planning a Step."""
        if self._busy_since is None:
            self._busy_since = time.perf_counter()

    def rest(self) -> None:
        """Record that there is no work."""
        self._busy_since = None

    def begin(self) -> None:
        """Start the clock, before a Step is started or the previous one's tokens are read."""
        self._began_at = time.perf_counter()
        if self._counts_work:
            self._worked_before = time.thread_time()

    def pause(self) -> None:
        """Stop the clock while a Step still runs on a device."""
        self._carried_seconds += time.perf_counter() - self._began_at

    def started(self, plan: StepPlan, num_padding: int) -> None:
        """Record a Step that was started."""
        self._open.append((plan, num_padding))
        self._stats.steps += 1

    @property
    def worked_seconds(self) -> float | None:
        """The processor time of this thread since `begin`: on a CPU, the Step's without other programs.

        None if it is not counted.
        """
        return time.thread_time() - self._worked_before if self._counts_work else None

    def ended(self) -> tuple[StepPlan, float]:
        """Charge the oldest open Step, which has ended; return it and its seconds."""
        now = time.perf_counter()
        plan, num_padding = self._open.popleft()
        seconds = self._carried_seconds + now - self._began_at
        charge(plan, self._stats, seconds=seconds, num_padding=num_padding, num_rows=self._num_rows)
        self._began_at, self._carried_seconds = now, 0.0
        if self._busy_since is not None:
            self.costs.add(plan, now - self._busy_since)
            self._busy_since = now
        return plan, seconds

    def begin_beside(self, plan: StepPlan) -> None:
        """Record a Step that begins and may run beside others, which share the time."""
        self._share()
        self._beside.append(_Beside(plan))
        self._stats.steps += 1

    def end_beside(self, plan: StepPlan) -> float:
        """Charge a Step that began so and has ended; return its share of the time."""
        self._share()
        (one,) = [one for one in self._beside if one.plan is plan]
        self._beside.remove(one)
        num_rows = plan.most_rows or self._num_rows
        charge(plan, self._stats, seconds=one.seconds, num_padding=0, num_rows=num_rows)
        self.costs.add(plan, one.seconds)
        return one.seconds

    def _share(self) -> None:
        """Divide the time since the last call evenly over the Steps that run beside each other."""
        now = time.perf_counter()
        for one in self._beside:
            one.seconds += (now - self._shared_at) / len(self._beside)
        self._shared_at = now
        if self._busy_since is not None:
            self._busy_since = now


def charge(plan: StepPlan, stats: EngineStats, *, seconds: float, num_padding: int, num_rows: int) -> None:
    """Divide a Step's `seconds` evenly over its tokens and `num_padding` rows, and count both.

    A Sequence pays for its own tokens and, in proportion to them, for a share of the padding. A prompt token
    counts as prefill even when it is computed again. `num_rows` is the most Sequences of a Step.
    """
    num_tokens = plan.num_tokens
    each = seconds / (num_tokens + num_padding)
    padding = each * num_padding / num_tokens
    total_prefill = 0
    for entry in plan.entries:
        sequence, count = entry.sequence, entry.num_tokens
        num_prefill = 0
        if entry.start < sequence.num_prompt_tokens:
            num_prefill = min(sequence.num_prompt_tokens - entry.start, count)
            sequence.prefill_seconds += num_prefill * each
            total_prefill += num_prefill
        sequence.decode_seconds += (count - num_prefill) * each
        sequence.padding_seconds += count * padding
    stats.prefill_seconds += total_prefill * each
    stats.decode_seconds += (num_tokens - total_prefill) * each
    stats.padding_seconds += num_padding * each
    stats.padding_tokens += num_padding
    stats.computed_tokens += num_tokens
    stats.scheduled_sequences += len(plan.entries)
    stats.sequence_rows += num_rows
