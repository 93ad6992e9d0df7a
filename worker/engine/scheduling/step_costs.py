"""Learns the cost of Steps by their size from Steps that ran. Knows no tensors.

Model: seconds of a Step = step + row * Sequences + token * tokens beyond one per Sequence + context * tokens
attended to, with no negative coefficient. Steps of similar size are averaged first, so that a thousand Steps
of one Sequence are one point of the fit, however rare larger Steps are.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import combinations

from worker.engine.scheduling.plan import StepPlan
from worker.values.step_costs import StepCosts

# The mean of a size follows about this many of its latest Steps.
REMEMBERED_STEPS = 256
# A size with this many Steps has full weight; one with fewer has proportionally less.
TRUSTED_STEPS = 32
# With fewer Steps than this there is no fit.
LEAST_STEPS = 16
# A size's weight halves after STALE_STEPS Steps of other sizes, down to STALE_SHARE at least.
STALE_STEPS, STALE_SHARE = 500.0, 0.005
# Regularization, as a share of the diagonal: separates features that the measured Steps do not.
RIDGE = 1e-4
NUM_FEATURES = 4


@dataclass(slots=True)
class _Size:
    """Running means over Steps of similar size."""

    num_steps: int = 0
    last_step: int = 0  # number of the latest Step, counted over all sizes
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


class CostEstimator:
    """Collects measured Steps; `fit` estimates the cost of their parts."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._num_steps = 0

    def add(self, plan: StepPlan, seconds: float) -> None:
        """Count a Step, except the first of its size, which may compile kernels for the others."""
        rows, tokens = len(plan.entries), plan.num_tokens
        context = sum(entry.num_tokens * (entry.start + 0.5 * entry.num_tokens) for entry in plan.entries)
        self.add_measured(rows, tokens - rows, context, seconds)

    def add_measured(self, rows: int, tokens: int, context: float, seconds: float) -> None:
        """Count a Step of `rows` Sequences with `tokens` tokens beyond one per Sequence, as `add` does."""
        key = rows.bit_length(), tokens.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size()
            return
        self._num_steps += 1
        self._sizes[key].add((1.0, rows, tokens, context), seconds, self._num_steps)

    def fit(self) -> StepCosts | None:
        """Return the costs with the least relative error on measured Steps; None if these are too few."""
        # Copies the sizes: the engine's thread may add one meanwhile.
        sizes = [size for size in list(self._sizes.values()) if size.num_steps]
        if self._num_steps < LEAST_STEPS:
            return None
        weights = [size.weight(self._num_steps) for size in sizes]
        rows = [[value / size.seconds for value in size.features] for size in sizes]
        best = _non_negative(rows, weights)
        often = [size for size in sizes if size.num_steps >= LEAST_STEPS // 2] or sizes
        max_rows = max(round(size.features[1]) for size in often)
        step, row, token, context = best
        return StepCosts(step, row, token, context, max_rows=max_rows)


def _non_negative(rows: Items[Items[float]], weights: Items[float]) -> list[float]:
    """Return x >= 0 that minimises sum(weight * (row . x - 1)^2), trying every set of zero entries."""
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
    """Solve a small symmetric positive definite system by elimination; None if it is singular."""
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
