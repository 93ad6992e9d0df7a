"""Limits the size of Steps: smaller after one ran out of memory, larger again after many that fitted.

worker/engine/scheduling/latency_target.py moves the limits within which this happens.
"""

import sys

GROW_AFTER_STEPS = 64


class StepLimits:
    """Current limits of a Step's Sequences and tokens, at most the configured ones."""

    def __init__(self, max_num_sequences: int, max_tokens: int) -> None:
        self.max_num_sequences = max_num_sequences
        self.max_tokens = max_tokens
        self._most = (max_num_sequences, max_tokens)
        self._num_good_steps = 0

    def share(self, most: int | None, num_steps: int) -> tuple[int, int]:
        """Return the most Sequences and tokens of one of `num_steps` Steps at once.

        It runs for `most` of the Sequences; None: it runs alone, for any number.
        """
        if most is None:
            return sys.maxsize, self.max_tokens
        return most, max(most, self.max_tokens // num_steps)

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
