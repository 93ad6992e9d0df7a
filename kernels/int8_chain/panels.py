"""Packs int8 weights into panels of columns, as the tiles read them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.int8_chain.cpu import LARGEST, ZERO
from kernels.int8_chain.tile import PANEL, WORD
from kernels.quantization import Int8Weight

ROWS_AT_ONCE = 1 << 12


@dataclass(frozen=True, slots=True)
class PanelWeight:
    """A weight in panels of PANEL output channels; the last panel and the last word end with zeros."""

    panels: Tensor  # [num_panels, num_words, PANEL, WORD] int8
    offsets: Tensor  # [num_panels * PANEL] int32: what the zero levels of activations add to a sum, negated
    scales: Tensor  # [num_panels * PANEL] float32, of a weight and an activation step together
    bias: Tensor  # [num_panels * PANEL] float32
    in_features: int
    out_features: int


def pack_panels(weight: Int8Weight, bias: Tensor | None = None) -> PanelWeight:
    """Pack a symmetric weight and its bias [out_features]; raise ValueError when it has zero points."""
    if weight.zero_points is not None:
        raise ValueError("pack_panels: the weight has zero points, which are not supported")
    out_features, in_features = weight.shape
    more = -out_features % PANEL
    levels = F.pad(weight.levels, (0, -in_features % WORD, 0, more))
    num_panels, num_words = len(levels) // PANEL, levels.shape[1] // WORD
    panels = levels.view(num_panels, PANEL, num_words, WORD).transpose(1, 2).contiguous()
    # In pieces, as a sum in int32 takes a copy in it.
    pieces = [levels[first : first + ROWS_AT_ONCE] for first in range(0, len(levels), ROWS_AT_ONCE)]
    sums = torch.cat([piece.sum(dim=1, dtype=torch.int32) for piece in pieces])
    return PanelWeight(
        panels=panels,
        offsets=sums * -ZERO,
        scales=F.pad(weight.scales / LARGEST, (0, more)),
        bias=torch.zeros(len(levels)) if bias is None else F.pad(bias.float(), (0, more)),
        in_features=in_features,
        out_features=out_features,
    )
