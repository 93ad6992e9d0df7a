"""Keeps a table of the measured time of decode Steps by their number of tokens."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from statistics import fmean, median

REMEMBERED = 7  # Steps of a size; their median bears what other programs do to single Steps
EXACT = 16  # larger sizes share a row of the table with sizes up to an eighth of an octave away
# A Step's fixed cost as tokens, beyond the sizes that were measured: of a CPU, and of a GPU, which reads its
# weights in the time that it multiplies some hundred tokens in.
FIXED_TOKENS, FIXED_TOKENS_OF_GPU = 8, 256
FAR = 1 << 12  # tokens beyond the largest measured size, to which the last line reaches


class StepTimes:
    """Median seconds by tokens, with straight lines between the sizes that were measured."""

    def __init__(self, fixed_tokens: int = FIXED_TOKENS) -> None:
        self._fixed_tokens = fixed_tokens
        self._measured: dict[int, deque[tuple[int, float]]] = {}
        self._points: dict[int, tuple[float, float]] = {}  # (tokens, seconds) by row
        self._changed: set[int] = set()  # rows whose points are old
        # In order of tokens, none slower than a larger one; None: to be made of the points again.
        self._line: list[tuple[float, float]] | None = None

    def add(self, num_tokens: int, seconds: float) -> None:
        """Count a Step."""
        row = num_tokens if num_tokens <= EXACT else EXACT + round(8 * math.log2(num_tokens / EXACT))
        steps = self._measured.setdefault(row, deque(maxlen=REMEMBERED))
        steps.append((num_tokens, seconds))
        self._changed.add(row)
        self._line = None

    def seconds(self, num_tokens: int) -> float | None:
        """Return the expected seconds of a Step of this size; None before any was measured."""
        line = self._line
        if line is None:
            line = self._line = self._made()
        if not line:
            return None
        place = bisect_left(line, (num_tokens, 0.0))
        if place < len(line) and line[place][0] == num_tokens:
            return line[place][1]
        if 0 < place < len(line):
            (low, low_seconds), (high, high_seconds) = line[place - 1], line[place]
            return low_seconds + (high_seconds - low_seconds) * (num_tokens - low) / (high - low)
        size, seconds = line[0] if place == 0 else line[-1]
        return seconds * (num_tokens + self._fixed_tokens) / (size + self._fixed_tokens)

    def onward(self, num_tokens: int) -> Iterator[float]:
        """Yield the expected seconds of a Step of this size, of one more token, and so on up to FAR more.

        Raises ValueError before any Step was measured.
        """
        seconds, line = self.seconds(num_tokens), self._line
        if not line or seconds is None:
            raise ValueError("no Step was measured yet")
        far = max(num_tokens, math.ceil(line[-1][0])) + FAR
        ends = [*line[bisect_right(line, (num_tokens, math.inf)) :], (far, self.seconds(far) or seconds)]
        start, size = float(num_tokens), num_tokens
        for end, end_seconds in ends:
            each = (end_seconds - seconds) / (end - start)
            while size < end:
                yield seconds + each * (size - start)
                size += 1
            start, seconds = end, end_seconds

    def _made(self) -> list[tuple[float, float]]:
        for row in self._changed:
            steps = self._measured[row]
            self._points[row] = fmean(size for size, _ in steps), median(taken for _, taken in steps)
        self._changed.clear()
        # What other programs do makes Steps slower, never faster: a size of which one slow Step was seen
        # takes no longer than a larger one.
        line: list[tuple[float, float]] = []
        shortest = math.inf
        for _, (size, taken) in sorted(self._points.items(), reverse=True):
            shortest = min(shortest, taken)
            line.append((size, shortest))
        return line[::-1]
