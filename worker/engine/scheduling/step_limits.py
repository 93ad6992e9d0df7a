"""How large a Step may be: less after one that ran out of memory, more again after many that did not."""

GROW_AFTER_STEPS = 64


class StepLimits:
    """The most Sequences and tokens of a Step, now and at best."""

    def __init__(self, max_num_sequences: int, max_tokens: int) -> None:
        self.max_num_sequences = max_num_sequences
        self.max_tokens = max_tokens
        self._most = (max_num_sequences, max_tokens)
        self._num_good_steps = 0

    def shrink(self, num_tokens: int) -> bool:
        """Take half of a Step that was too large as the limit; False: it had one token."""
        self._num_good_steps = 0
        if num_tokens <= 1:
            return False
        self.max_tokens = num_tokens // 2
        self.max_num_sequences = min(self.max_num_sequences, self.max_tokens)
        return True

    def step_was_good(self) -> None:
        """Count a Step that fitted, and try larger ones once there were many."""
        if (self.max_num_sequences, self.max_tokens) == self._most:
            return
        self._num_good_steps += 1
        if self._num_good_steps >= GROW_AFTER_STEPS:
            self._num_good_steps = 0
            self.max_num_sequences = min(2 * self.max_num_sequences, self._most[0])
            self.max_tokens = min(2 * self.max_tokens, self._most[1])

    def reset(self) -> None:
        """Go back to the largest Steps: what was too large has been taken out."""
        self.max_num_sequences, self.max_tokens = self._most
