"""How many Blocks running Sequences will need at once, if each ends when it is expected to."""

from bisect import insort


class MemoryForecast:
    """The most Blocks in use from now on.

    Use grows by a token a Step and Sequence and falls when one ends, so it peaks just before an end; only
    those moments are looked at. What Sequences share counts as used throughout.
    """

    def __init__(self, block_size: int, num_used: int) -> None:
        self._block_size = block_size
        self._num_used = num_used
        # (-Steps to its end, tokens that fit its last Block, Blocks its end frees), the last to end first.
        self._entries: list[tuple[int, int, int]] = []
        self._num_freed = 0

    def add(self, num_steps: int, num_spare_slots: int, num_own: int, num_taken: int = 0) -> None:
        """Add a Sequence: Steps to its end, free Slots it has, Blocks it alone holds, of which new ones."""
        insort(self._entries, (-num_steps, num_spare_slots, num_own))
        self._num_freed += num_own
        self._num_used += num_taken

    def remove(self, num_steps: int, num_spare_slots: int, num_own: int, num_taken: int = 0) -> None:
        """Undo `add`."""
        self._entries.remove((-num_steps, num_spare_slots, num_own))
        self._num_freed -= num_own
        self._num_used -= num_taken

    def peak(self, horizon: int) -> int:
        """Return the most Blocks in use at once, now included, within `horizon` Steps.

        Never too low for what was expected.
        """
        most = self._num_used
        # Of those still running at the moment looked at.
        num_freed = num_spare = 0
        for num_alive, (negative_steps, spare, own) in enumerate(self._entries, 1):
            steps = min(-negative_steps, horizon)
            num_spare += spare
            num_freed += own
            # Each of them may have begun one more Block than its tokens fill.
            grown = (num_alive * (self._block_size - 1 + steps) - num_spare) // self._block_size
            most = max(most, self._num_used + grown - (self._num_freed - num_freed))
        return most
