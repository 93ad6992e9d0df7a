"""Keeps a GPU busy: starts a Step before the host has read the tokens of the Step before it."""

from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.requests.errors import OutOfMemoryError
from worker.engine.running.model_runner import ModelRunner
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.step_meter import StepMeter


class StepPipeline:
    """Starts Steps and returns the tokens they chose: on a CPU at once, on a GPU one Step later.

    So on a GPU the end of a Sequence is noticed one Step late, and the token that the new Step chose for it
    is dropped.
    """

    def __init__(self, runner: ModelRunner, meter: StepMeter) -> None:
        self.running: Chosen | None = None  # the last Step's tokens, while only the device has them
        self._runner = runner
        self._meter = meter

    def start(self, plan: StepPlan) -> Chosen | None:
        """Start a Step, if the plan holds one; return the late tokens of the Step before it, if any.

        Raises OutOfMemoryError when the Step did not fit; the Step before it keeps running.
        """
        self._meter.begin()
        try:
            started = self._runner.execute(plan) if plan.entries else None
        except OutOfMemoryError:
            if self.running is not None:
                self._meter.pause()
            raise
        if started is not None:
            self._meter.started(plan, self._runner.num_padding)
        late, self.running = self.running, started
        return late

    def finish(self, *, waits: bool = False) -> Chosen | None:
        """Return the tokens of the Step that was started last, unless only the device has them yet.

        These are returned too if it `waits`, and the next Step starts after them.
        """
        running = self.running
        if running is None:
            return None
        if running.is_here or waits:
            self.running = None
            return running
        for sequence in running.sequences:
            sequence.num_pending_tokens = 1
        self._meter.pause()
        return None
