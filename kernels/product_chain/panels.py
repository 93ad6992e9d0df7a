"""Packs weights in int8, bfloat16 or float32 into panels of columns, as the tiles read them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.product_chain.factors import (
    BYTES,
    FACTOR_BYTES,
    FLOATS,
    LARGEST,
    PAIRS,
    WIDENED_PAIRS,
    ZERO,
)
from kernels.product_chain.tile import PANEL, WORD
from kernels.quantization import Int8Weight

PANELS_AT_ONCE = 512 // PANEL  # as they are packed, which limits the memory for it


@dataclass(frozen=True, slots=True)
class PanelWeight:
    """A weight in panels of PANEL output channels; the last panel and the last word end with zeros."""

    panels: Tensor  # [num_panels, num_words, PANEL, WORD / itemsize] int8, bfloat16 or float32
    format: int  # BYTES, PAIRS, WIDENED_PAIRS or FLOATS
    # Of int8 only: int32 [num_panels * PANEL], what the zero levels of activations add to a sum, negated;
    # and float32 [num_panels * PANEL], of a weight and an activation step together.
    offsets: Tensor | None
    scales: Tensor | None
    bias: Tensor  # [num_panels * PANEL] float32
    in_features: int
    out_features: int

    @property
    def num_panels(self) -> int:
        """The number of panels."""
        return self.panels.shape[0]

    @property
    def num_words(self) -> int:
        """The words of a row of a panel."""
        return self.panels.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes that a product reads."""
        return self.panels.nbytes

    @property
    def depth(self) -> int:
        """The bytes of a row's factors."""
        return self.num_words * FACTOR_BYTES[self.format]


def pack_panels(
    weight: Int8Weight | Tensor, bias: Tensor | None = None, *, rounds: bool = True
) -> PanelWeight:
    """Pack a symmetric int8 weight, or one of floats [out_features, in_features], and its bias.

    Rows are rounded to bfloat16 before a weight in it, unless `rounds` is false. Raises ValueError when an
    int8 weight has zero points, and when a tensor is neither bfloat16 nor float32.
    """
    out_features, in_features = weight.shape
    more = -out_features % PANEL
    offsets = scales = None
    if isinstance(weight, Tensor):
        if weight.dtype not in {torch.bfloat16, torch.float32}:
            raise ValueError(f"pack_panels: the weight is {weight.dtype}, not bfloat16 or float32")
        panels = _panels(weight)
        pairs = PAIRS if rounds else WIDENED_PAIRS
        format_ = pairs if weight.dtype == torch.bfloat16 else FLOATS
    else:
        if weight.zero_points is not None:
            raise ValueError("pack_panels: the weight has zero points, which are not supported")
        panels, format_ = _panels(weight.levels), BYTES
        # In pieces, as a sum in int32 takes a copy in it.
        pieces = [panels[first : first + PANELS_AT_ONCE] for first in range(0, len(panels), PANELS_AT_ONCE)]
        sums = [piece.sum(dim=(1, 3), dtype=torch.int32) for piece in pieces]
        offsets = torch.cat(sums).flatten() * -ZERO
        scales = F.pad(weight.scales / LARGEST, (0, more))
    return PanelWeight(
        panels=panels,
        format=format_,
        offsets=offsets,
        scales=scales,
        bias=torch.zeros(len(panels) * PANEL) if bias is None else F.pad(bias.float(), (0, more)),
        in_features=in_features,
        out_features=out_features,
    )


def _panels(weight: Tensor) -> Tensor:
    """Return [out_features, in_features] as [num_panels, num_words, PANEL, elements of a word]."""
    out_features, in_features = weight.shape
    elements = WORD // weight.itemsize
    shape = (-(-out_features // PANEL), -(-in_features // elements), PANEL, elements)
    panels = torch.empty(shape, dtype=weight.dtype)
    for first in range(0, len(panels), PANELS_AT_ONCE):
        some = weight[first * PANEL : (first + PANELS_AT_ONCE) * PANEL]
        some = F.pad(some, (0, -in_features % elements, 0, -len(some) % PANEL))
        lines = some.view(-1, PANEL, shape[1], elements).transpose(1, 2)
        panels[first : first + len(lines)] = lines
    return panels
