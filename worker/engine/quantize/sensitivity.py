"""Measures on text what other formats of a model's weights cost, product by product or together."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from kernels.quantization import QuantizedWeight
from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.linear import Linear, Projection
from worker.engine.quantize.calibration import WINDOW, Moments
from worker.engine.quantize.choice import FormatCost
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.logits import CHUNK, LogitComparison
from worker.engine.quantize.text_forward import TextForward
from worker.quality.text import TextComparison

EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(slots=True)
class _Part:
    """A product of which the weight can be replaced."""

    names: list[str]  # of the modules whose weights it holds
    original: Projection
    bias: Tensor | None
    out_features: int = field(init=False)
    replacement: Projection | None = None

    def __post_init__(self) -> None:
        self.out_features = self.original.out_features

    def __call__(self, x: Tensor) -> Tensor:
        return self.original(x) if self.replacement is None else self.replacement(x)


class _ReplaceableWeights(Weights):
    """Weights whose products can be replaced, by the name of the product."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        super().__init__(directory, dtype)
        self.products: dict[str, list[_Part]] = {}

    def linear(
        self,
        names: list[str],
        rows: list[int],
        columns: int,
        *,
        has_bias: bool = False,
        is_exact: bool = False,
    ) -> Projection:
        """Return the product, replaceable unless `is_exact`; those of all experts of a layer are one."""
        projection = super().linear(names, rows, columns, has_bias=has_bias, is_exact=is_exact)
        if is_exact or not names[0].endswith("_proj"):
            return projection
        part = _Part(names, projection, self._bias(names, rows, has_bias=has_bias))
        self.products.setdefault(EXPERT.sub(".experts.*.", names[0]), []).append(part)
        return part

    def stored(self, name: str) -> Tensor:
        """Return a tensor as it is stored."""
        return self._stored(name)


@dataclass(frozen=True, slots=True)
class ReadText:
    """Windows of token ids, each [num_tokens], with the exact model's final hidden states of each."""

    windows: Sequence[Tensor]
    states: Sequence[Tensor]


class Sensitivity:
    """A model whose products can take other formats; raises CheckpointError as the Engine would.

    Products that read the same input, and those of all experts of a layer, are one here: the Engine holds
    them as one weight, which has one format.
    """

    def __init__(self, model: Path, moments: Mapping[str, Moments]) -> None:
        self._forward = TextForward(model, WINDOW, torch.float32, _ReplaceableWeights)
        if not isinstance(self._forward.weights, _ReplaceableWeights):
            raise TypeError(f"cannot replace weights of {type(self._forward.weights)}")
        self._weights = self._forward.weights
        self._moments = moments
        # Of each module and format that was tried, as rounding takes longer than reading text.
        self._rounded: dict[tuple[str, WeightFormat], QuantizedWeight] = {}

    @property
    def products(self) -> dict[str, list[str]]:
        """The modules of each product, by its name."""
        return {
            name: [module for part in parts for module in part.names]
            for name, parts in self._weights.products.items()
        }

    def read(self, windows: Sequence[Tensor]) -> ReadText:
        """Have the exact model read a text; of a window of one token, nothing is predicted."""
        windows = [window for window in windows if len(window) > 1]
        return ReadText(windows, [self._forward.hidden(window) for window in windows])

    def costs(
        self, product: str, formats: Sequence[WeightFormat], text: ReadText
    ) -> dict[WeightFormat | None, FormatCost]:
        """Return what a product costs in each of the formats that fit it, the others being exact.

        None is the format that it is stored in.
        """
        found: dict[WeightFormat | None, FormatCost] = {None: FormatCost(self._num_bytes(product), 0.0)}
        for format_ in formats:
            try:
                with self._in_formats({product: format_}) as num_bytes:
                    divergences = self._compare(text).divergences
            except ValueError:
                continue
            found[format_] = FormatCost(num_bytes, fmean(divergences))
        return found

    def _num_bytes(self, product: str) -> int:
        """Return the bytes of a product's weights as they are stored."""
        return sum(
            self._weights.stored(f"{module}.weight").nbytes
            for part in self._weights.products[product]
            for module in part.names
        )

    def compare(self, formats: Mapping[str, WeightFormat], text: ReadText) -> TextComparison:
        """Compare the model with products in some formats, by product, with the exact one."""
        with self._in_formats(formats):
            return self._compare(text).result()

    @contextmanager
    def _in_formats(self, formats: Mapping[str, WeightFormat]) -> Iterator[int]:
        """Hold products in formats for a while, and yield the bytes of their weights."""
        changed = [
            (part, format_) for name, format_ in formats.items() for part in self._weights.products[name]
        ]
        num_bytes = 0
        try:
            for part, format_ in changed:
                num_bytes += self._replace(part, format_)
            yield num_bytes
        finally:
            for part, _ in changed:
                part.replacement = None

    @torch.inference_mode()
    def _replace(self, part: _Part, format_: WeightFormat) -> int:
        weights = [self._round(module, format_) for module in part.names]
        part.replacement = Linear(torch.cat([weight.dequantize() for weight in weights]), part.bias)
        return sum(weight.num_bytes for weight in weights)

    def _round(self, module: str, format_: WeightFormat) -> QuantizedWeight:
        if (module, format_) not in self._rounded:
            moments = self._moments.get(module)
            stored = self._weights.stored(f"{module}.weight")
            self._rounded[module, format_] = format_.quantize(
                stored, None if moments is None else moments.mean()
            )
        return self._rounded[module, format_]

    @torch.inference_mode()
    def _compare(self, text: ReadText) -> LogitComparison:
        found = LogitComparison()
        logits = self._forward.model.logits
        for window, exact in zip(text.windows, text.states, strict=True):
            states = self._forward.hidden(window)
            # The last state predicts what comes after the window.
            for part in torch.split(torch.arange(len(window) - 1), CHUNK):
                found.add(logits(exact[part]), logits(states[part]), window[part + 1])
        return found
