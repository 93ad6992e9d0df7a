"""Forecasts how many Blocks running Sequences will need at once, if each ends when expected."""

from bisect import insort


class MemoryForecast:
    """Forecast of the peak number of Blocks in use.

    Use grows by one token per Step and Sequence and falls when a Sequence ends, so it peaks just before an
    end; only those moments are checked. Shared Blocks count as used throughout.
    """

    def __init__(self, block_size: int, num_used: int) -> None:
        self._block_size = block_size
        self._num_used = num_used
        # (-Steps to its end, free Slots in its Blocks, Blocks that its end frees), the last to end first.
        self._entries: list[tuple[int, int, int]] = []
        self._num_freed = 0

    def add(self, num_steps: int, num_spare_slots: int, num_own: int, num_taken: int = 0) -> None:
        """Add a Sequence.

        It ends in `num_steps` Steps, has `num_spare_slots` free Slots, and holds `num_own` Blocks alone, of
        which `num_taken` are not counted as used yet.
        """
        insort(self._entries, (-num_steps, num_spare_slots, num_own))
        self._num_freed += num_own
        self._num_used += num_taken

    def remove(self, num_steps: int, num_spare_slots: int, num_own: int, num_taken: int = 0) -> None:
        """Undo an `add` with the same arguments."""
        self._entries.remove((-num_steps, num_spare_slots, num_own))
        self._num_freed -= num_own
        self._num_used -= num_taken

    def peak(self, horizon: int) -> int:
        """Return the most Blocks in use at once, from now to `horizon` Steps ahead.

        It is never too low if all lengths are as expected.
        """
        most = self._num_used
        # Totals of the Sequences that still run at the moment checked.
        num_freed = num_spare = 0
        for num_alive, (negative_steps, spare, own) in enumerate(self._entries, 1):
            steps = min(-negative_steps, horizon)
            num_spare += spare
            num_freed += own
            # Each may have begun one more Block than its tokens fill.
            grown = (num_alive * (self._block_size - 1 + steps) - num_spare) // self._block_size
            most = max(most, self._num_used + grown - (self._num_freed - num_freed))
        return most
