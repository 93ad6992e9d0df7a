"""Limits how many Sequences run, and the size of Steps.

Steps are smaller after one ran out of memory, and larger again after many that fitted.
worker/engine/scheduling/latency_target.py moves the limits within which this happens.
"""

import sys
import time

GROW_AFTER_STEPS = 64
URGENT_SECONDS = 10.0  # so long after urgent work more of it is expected


class StepLimits:
    """Current limits of a Step's Sequences and tokens, at most the configured ones."""

    def __init__(self, max_num_sequences: int, max_tokens: int, least_rows_beside: int = 0) -> None:
        self.max_num_sequences = max_num_sequences
        self.max_tokens = max_tokens
        self.least_rows_beside = least_rows_beside  # of a Step that runs beside others
        self._most = (max_num_sequences, max_tokens)
        self._num_good_steps = 0
        self._num_steps = 1  # that may run at once
        self._urgent_until = float("-inf")

    def start_step(self, num_steps: int, *, is_urgent: bool) -> None:
        """Note how many Steps may run at once, and whether urgent work runs or waits."""
        self._num_steps = num_steps
        if is_urgent:
            self._urgent_until = time.monotonic() + URGENT_SECONDS

    @property
    def most_rows(self) -> int:
        """The most Sequences of all Steps that may run at once."""
        return self.max_num_sequences * self._num_steps

    @property
    def most_running(self) -> int:
        """The most Sequences that may run: `most_rows`, but those of one Step if urgent work is expected.

        Urgent work waits until all Steps have ended, so these are then shorter.
        """
        is_expected = self._num_steps > 1 and time.monotonic() < self._urgent_until
        return self.max_num_sequences if is_expected else self.most_rows

    def expected(self, num_running: int, num_waiting: int) -> int:
        """Return how many Sequences run once those that wait have started, as far as they may."""
        return max(num_running, min(self.most_running, num_running + num_waiting))

    def share(self, most: int | None) -> tuple[int, int]:
        """Return the most Sequences and tokens of the next Step, which runs for `most` of those that run.

        None: it runs alone, for all of them, or for as many as one Step has where several may run at once.
        """
        if most is not None:
            return most, max(most, self.max_tokens // self._num_steps)
        return (sys.maxsize if self._num_steps == 1 else self.max_num_sequences), self.max_tokens

    def shrink(self, num_tokens: int) -> bool:
        """Limit Steps to half the tokens of one that was too large; return False if it had one token."""
        self._num_good_steps = 0
        if num_tokens <= 1:
            return False
        self.max_tokens = num_tokens // 2
        self.max_num_sequences = min(self.max_num_sequences, self.max_tokens)
        return True

    def step_was_good(self) -> None:
        """Count a Step that fitted; double the limits after GROW_AFTER_STEPS of them."""
        if (self.max_num_sequences, self.max_tokens) == self._most:
            return
        self._num_good_steps += 1
        if self._num_good_steps >= GROW_AFTER_STEPS:
            self._num_good_steps = 0
            self.max_num_sequences = min(2 * self.max_num_sequences, self._most[0])
            self.max_tokens = min(2 * self.max_tokens, self._most[1])

    def limit(self, max_num_sequences: int, max_tokens: int) -> None:
        """Replace the configured limits; those that a lack of memory has lowered stay, or fall to them."""
        were_lowered = (self.max_num_sequences, self.max_tokens) != self._most
        self._most = (max_num_sequences, max_tokens)
        self.max_num_sequences = (
            min(self.max_num_sequences, max_num_sequences) if were_lowered else max_num_sequences
        )
        self.max_tokens = min(self.max_tokens, max_tokens) if were_lowered else max_tokens

    def reset(self) -> None:
        """Restore the configured limits: the request that was too large is gone."""
        self.max_num_sequences, self.max_tokens = self._most
