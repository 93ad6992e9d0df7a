"""Measures the second moments of the inputs of a model's matrix products on a calibration text."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.linear import Projection
from worker.engine.quantize.text_forward import TextForward

WINDOW = 512  # tokens that are read together
# Tokens used to estimate the second moments; more change them little.
MAX_TOKENS = 32_768


@dataclass(slots=True)
class Moments:
    """Sum of `x^T x` over the rows that a product has read."""

    total: Tensor | None = None
    num_rows: int = 0

    def add(self, x: Tensor) -> None:
        """Add rows [num_rows, in_features]."""
        x = x.float()
        product = x.T @ x
        self.total = product if self.total is None else self.total.add_(product)
        self.num_rows += len(x)

    def mean(self) -> Tensor | None:
        """Return the mean [in_features, in_features]; None if no row was read."""
        return None if self.total is None else self.total / self.num_rows


@dataclass(slots=True)
class _Observed:
    """A product that adds its inputs to moments."""

    projection: Projection
    moments: Moments
    out_features: int = field(init=False)

    def __post_init__(self) -> None:
        self.out_features = self.projection.out_features

    def __call__(self, x: Tensor) -> Tensor:
        self.moments.add(x)
        return self.projection(x)


class _ObservedWeights(Weights):
    """Weights whose products are observed. Modules that read the same input share its moments."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        super().__init__(directory, dtype)
        self.moments: dict[str, Moments] = {}

    def linear(
        self,
        names: list[str],
        rows: list[int],
        columns: int,
        *,
        has_bias: bool = False,
        is_exact: bool = False,
    ) -> Projection:
        """Return the product, observed unless `is_exact`."""
        projection = super().linear(names, rows, columns, has_bias=has_bias, is_exact=is_exact)
        if is_exact:
            return projection
        moments = Moments()
        self.moments |= dict.fromkeys(names, moments)
        return _Observed(projection, moments)


def calibrate(directory: Path, token_ids: Tensor, begin: int | None) -> dict[str, Moments]:
    """Return the moments of every product, by module name, over windows of `token_ids` [num_tokens].

    Each window starts with the token `begin`, if there is one. All moments are in memory at once: in_features
    squared values in float32 for each product.
    """
    forward = TextForward(directory, WINDOW, torch.float32, _ObservedWeights)
    weights = forward.weights
    if not isinstance(weights, _ObservedWeights):
        raise TypeError(f"cannot calibrate weights of {type(weights)}")
    head = torch.tensor([] if begin is None else [begin], dtype=torch.int64)
    token_ids = token_ids[:MAX_TOKENS]
    step = forward.length - len(head)
    for start in range(0, len(token_ids), step):
        forward.hidden(torch.cat([head, token_ids[start : start + step]]))
    return weights.moments
