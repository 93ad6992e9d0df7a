"""What Steps cost, by their size: learned from those that ran. Knows no tensors.

Seconds of a Step ~ step + row * Sequences + token * further tokens of prompts + context * tokens attended to,
none of them negative. Steps of like size are averaged first, so that a thousand Steps of one Sequence are one
point of the fit, however seldom larger ones come.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import combinations

from worker.engine.scheduling.plan import StepPlan

# The mean of a size follows the last so many Steps of it.
REMEMBERED_STEPS = 256
# A size that was measured so often is believed in full; one that was seen less, in proportion.
TRUSTED_STEPS = 32
# Fewer Steps than this say nothing.
LEAST_STEPS = 16
# A size counts half as much after so many Steps of others, but never less than this share.
STALE_STEPS, STALE_SHARE = 500.0, 0.005
# Keeps apart what was never seen apart: a share of the squared error that the whole prediction would make.
RIDGE = 1e-4
NUM_FEATURES = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a Step, of each Sequence in it, of each further token, of each token attended to."""

    step: float
    row: float
    token: float
    context: float
    num_steps: int  # that were measured
    max_rows: int  # Sequences of the largest Steps that were measured often enough


@dataclass(slots=True)
class _Size:
    """Steps of like size, as their running means."""

    num_steps: int = 0
    last_step: int = 0  # counted over all sizes
    features: list[float] = field(default_factory=lambda: [0.0] * NUM_FEATURES)
    seconds: float = 0.0

    def add(self, features: Items[float], seconds: float, number: int) -> None:
        self.num_steps += 1
        self.last_step = number
        share = max(1 / self.num_steps, 1 / REMEMBERED_STEPS)
        self.seconds += share * (seconds - self.seconds)
        for index, value in enumerate(features):
            self.features[index] += share * (value - self.features[index])

    def weight(self, number: int) -> float:
        fresh = max(STALE_SHARE, math.exp2((self.last_step - number) / STALE_STEPS))
        return fresh * min(self.num_steps, TRUSTED_STEPS) / TRUSTED_STEPS


class StepCosts:
    """Measures Steps; `fit` says what their parts cost."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._num_steps = 0

    def add(self, plan: StepPlan, seconds: float) -> None:
        """Count a Step. The first of its size is left out: it may compile what all others then use."""
        rows, tokens = len(plan.entries), plan.num_tokens
        context = sum(entry.num_tokens * (entry.start + 0.5 * entry.num_tokens) for entry in plan.entries)
        self.add_measured(rows, tokens - rows, context, seconds)

    def add_measured(self, rows: int, tokens: int, context: float, seconds: float) -> None:
        """Count a Step of so many Sequences, with so many tokens over one each."""
        key = rows.bit_length(), tokens.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size()
            return
        self._num_steps += 1
        self._sizes[key].add((1.0, rows, tokens, context), seconds, self._num_steps)

    def fit(self) -> Costs | None:
        """Return the costs with the least relative error for what was measured; None: that is too little."""
        # A copy: the engine's thread may add a size meanwhile.
        sizes = [size for size in list(self._sizes.values()) if size.num_steps]
        if self._num_steps < LEAST_STEPS:
            return None
        weights = [size.weight(self._num_steps) for size in sizes]
        rows = [[value / size.seconds for value in size.features] for size in sizes]
        best = _non_negative(rows, weights)
        often = [size for size in sizes if size.num_steps >= LEAST_STEPS // 2] or sizes
        max_rows = max(round(size.features[1]) for size in often)
        step, row, token, context = best
        return Costs(step, row, token, context, num_steps=self._num_steps, max_rows=max_rows)


def _non_negative(rows: Items[Items[float]], weights: Items[float]) -> list[float]:
    """Return x >= 0 that minimises sum(weight * (row . x - 1)^2), by trying which entries are zero."""
    normal = [
        [sum(w * row[i] * row[j] for row, w in zip(rows, weights, strict=True)) for j in range(NUM_FEATURES)]
        for i in range(NUM_FEATURES)
    ]
    target = [sum(w * row[i] for row, w in zip(rows, weights, strict=True)) for i in range(NUM_FEATURES)]
    for i in range(NUM_FEATURES):
        normal[i][i] *= 1 + RIDGE
    best, least = [0.0] * NUM_FEATURES, math.inf
    for count in range(1, NUM_FEATURES + 1):
        for chosen in combinations(range(NUM_FEATURES), count):
            solved = _solve([[normal[i][j] for j in chosen] for i in chosen], [target[i] for i in chosen])
            if solved is None or min(solved) < 0:
                continue
            # At the minimum the error is a constant less this product.
            error = -sum(target[i] * value for i, value in zip(chosen, solved, strict=True))
            if error < least:
                least = error
                best = [0.0] * NUM_FEATURES
                for i, value in zip(chosen, solved, strict=True):
                    best[i] = value
    return best


def _solve(matrix: list[list[float]], target: list[float]) -> list[float] | None:
    """Return the solution of a small symmetric positive system by elimination; None: it is singular."""
    size = len(target)
    augmented = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    for i in range(size):
        pivot = augmented[i][i]
        if pivot <= 1e-12 * matrix[i][i] or not pivot:
            return None
        for j in range(i + 1, size):
            share = augmented[j][i] / pivot
            augmented[j] = [a - share * b for a, b in zip(augmented[j], augmented[i], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(augmented[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (augmented[i][size] - rest) / augmented[i][i]
    return solved
