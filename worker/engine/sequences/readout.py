"""Accumulates results other than next tokens from a Sequence's rows. Knows numbers, no tensors."""

from dataclasses import dataclass, field

import numpy as np

from worker.values.logprobs import TokenLogprob
from worker.values.results import ContinuationScore


@dataclass(slots=True)
class PooledReadout:
    """Sums the hidden states of a Sequence from `next_row` on, chunk by chunk.

    float64 makes sums of bfloat16 rows exact in practice, so the result does not depend on how the Sequence
    was cut into chunks.
    """

    next_row: int  # the first position that is not read yet
    end_row: int
    total: np.ndarray | None = None  # [hidden_size] float64
    num_rows: int = 0

    def push(self, rows: np.ndarray) -> None:
        """Add the next rows, [num_rows, hidden_size] float64."""
        added = rows.sum(axis=0)
        self.total = added if self.total is None else self.total + added
        self.num_rows += len(rows)
        self.next_row += len(rows)

    def vector(self, dimensions: int | None, *, is_normalised: bool) -> tuple[float, ...]:
        """Return the first `dimensions` values of the mean, scaled to length one if `is_normalised`.

        Raises ValueError if no row was read.
        """
        if self.total is None:
            raise ValueError("no row was read")
        mean = (self.total / self.num_rows)[:dimensions]
        if is_normalised:
            mean /= max(float(np.linalg.norm(mean)), 1e-12)  # a zero vector stays one
        values: list[float] = mean.astype(np.float32).tolist()
        return tuple(values)


@dataclass(slots=True)
class ScoredReadout:
    """Collects the logprobs of continuations that differ only in their last token.

    The last tokens never run through the model: the row before them gives all their logprobs at once.
    """

    next_row: int  # the first position that is not read yet
    head: tuple[int, ...]  # the tokens that the continuations share
    last_tokens: tuple[int, ...]
    rows: list[list[tuple[float, bool]]] = field(default_factory=list)  # (logprob, is most likely) by target

    @property
    def end_row(self) -> int:
        """One past the last position that is read."""
        return self.next_row + len(self.head) + 1 - len(self.rows)

    def targets(self, num_rows: int) -> list[tuple[int, ...]]:
        """Return, for each of the next rows, the tokens whose logprobs are read from it."""
        count = len(self.rows)
        return [
            (self.head[index],) if index < len(self.head) else self.last_tokens
            for index in range(count, count + num_rows)
        ]

    def push(self, rows: list[list[tuple[float, bool]]]) -> None:
        """Add the next rows: (logprob, is most likely) for each of their targets."""
        self.rows += rows
        self.next_row += len(rows)

    def scores(self) -> list[ContinuationScore]:
        """Return the score of each continuation, in the order of `last_tokens`."""
        head = [row[0] for row in self.rows[:-1]]
        results = []
        for token, last in zip(self.last_tokens, self.rows[-1], strict=True):
            logprobs, is_best = zip(*head, last, strict=True)
            results.append(ContinuationScore(logprobs, all(is_best), (*self.head, token)))
        return results


@dataclass(slots=True)
class PromptReadout:
    """Collects the logprobs of a prompt's own tokens, each from the row before it.

    Its Sequence then continues to generate.
    """

    next_token_ids: list[int]  # of the prompt, without the first
    count: int  # of likeliest tokens reported beside each
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def next_row(self) -> int:
        """The first position that is not read yet."""
        return len(self.logprobs)

    @property
    def end_row(self) -> int:
        """One past the last position that is read."""
        return len(self.next_token_ids)

    def push(self, rows: list[TokenLogprob]) -> None:
        """Add the logprobs of the next rows."""
        self.logprobs += rows


Readout = PooledReadout | ScoredReadout | PromptReadout
