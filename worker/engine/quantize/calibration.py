"""Observes the inputs of a model's matrix products on a calibration text: second moments, and ranges."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from worker.engine.models.checkpoint import Weights, read_json
from worker.engine.models.layers.linear import Projection
from worker.engine.models.registry import read_architecture
from worker.engine.quantize.text_forward import TextForward

WINDOW = 512  # tokens that are read together
# Windows used to estimate what products read; more change it little.
MAX_WINDOWS = 64
LARGEST = 127  # of a symmetric int8 range
BINS_PER_OCTAVE = 16
OCTAVES = (-24, 24)  # of the values that an input range tells apart


class Observer(Protocol):
    """What is gathered of the inputs of a product."""

    def add(self, x: Tensor) -> None:
        """Add rows [num_rows, in_features]."""


T = TypeVar("T", bound=Observer)


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


def _no_counts() -> Tensor:
    return torch.zeros((OCTAVES[1] - OCTAVES[0]) * BINS_PER_OCTAVE, dtype=torch.float64)


@dataclass(slots=True)
class InputRange:
    """How large the values are that a product has read: counts by octave, in even parts."""

    counts: Tensor = field(default_factory=_no_counts)

    def add(self, x: Tensor) -> None:
        """Add rows [num_rows, in_features]."""
        octaves = x.abs().float().clamp(min=2.0 ** OCTAVES[0]).log2()
        self.counts += torch.histc(octaves, len(self.counts), *OCTAVES).double()

    def scale(self) -> float | None:
        """Return the scale of int8 levels with the least squared error; None if no row was read.

        What is larger than 127 scales is cut off. So the few largest values may be, for the others' sake.
        """
        if not bool(self.counts.any()):
            return None
        places = torch.arange(len(self.counts), dtype=torch.float64) + 0.5
        values = torch.exp2(places / BINS_PER_OCTAVE + OCTAVES[0])  # in the middle of each bin
        seen = values[self.counts > 0]
        best, least = 0.0, float("inf")
        for largest in seen[seen >= seen[-1] / 64].tolist():
            scale = largest / LARGEST
            levels = (values / scale).round().clamp(max=LARGEST)
            # Within a bin, values that are rounded lie evenly about their level.
            errors = torch.where(
                (levels > 0) & (levels < LARGEST), scale**2 / 12, (values - levels * scale).square()
            )
            error = float((errors * self.counts).sum())
            if error < least:
                best, least = scale, error
        return best


@dataclass(slots=True)
class _Observed:
    """A product whose inputs are observed."""

    projection: Projection
    observer: Observer
    out_features: int = field(init=False)

    def __post_init__(self) -> None:
        self.out_features = self.projection.out_features

    def __call__(self, x: Tensor) -> Tensor:
        self.observer.add(x)
        return self.projection(x)


class _ObservedWeights(Weights, Generic[T]):
    """Weights whose products are observed. Modules that read the same input share an observer."""

    def __init__(
        self, directory: Path, dtype: torch.dtype, make: Callable[[], T], observers: dict[str, T]
    ) -> None:
        super().__init__(directory, dtype)
        self._make = make
        self._observers = observers

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
        observer = self._make()
        self._observers |= dict.fromkeys(names, observer)
        return _Observed(projection, observer)


def observe(model: Path, windows: Sequence[Tensor], make: Callable[[], T]) -> dict[str, T]:
    """Return the observers of every product, by module name, after the first windows, each [num_tokens].

    Moments are in memory for all products at once: in_features squared values in float32 for each. Raises
    CheckpointError as the Engine would.
    """
    observers: dict[str, T] = {}
    make_weights = partial(_ObservedWeights, make=make, observers=observers)
    forward = TextForward(model, WINDOW, torch.float32, make_weights)
    for window in windows[:MAX_WINDOWS]:
        forward.hidden(window)
    return observers


def input_scales(model: Path, windows: Sequence[Tensor]) -> dict[str, float]:
    """Return the scales of the int8 inputs of products that read any, by module name, as `observe` does."""
    ranges = observe(model, windows, InputRange)
    return {name: scale for name, one in ranges.items() if (scale := one.scale()) is not None}


def read_windows(model: Path, text: str) -> list[Tensor]:
    """Return a text as windows of token ids for a checkpoint, each begun as the model expects.

    Raises CheckpointError, OSError, or ValueError if the text has no tokens.
    """
    begin = read_json(model / "config.json").get("bos_token_id")
    tokenizer = Tokenizer.from_buffer((model / "tokenizer.json").read_bytes())
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
    if not len(ids):
        raise ValueError("the calibration text has no tokens")
    head = torch.tensor([begin] if isinstance(begin, int) else [], dtype=torch.int64)
    length = min(WINDOW, read_architecture(model).max_position) - len(head)
    return [torch.cat([head, part]) for part in torch.split(ids, length)]
