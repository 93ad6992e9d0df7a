"""Packs weights that a checkpoint has in 4 or 8 bits as chains multiply them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.product_chain.factors import FACTOR_BYTES, FLOATS, IS_WIDENED, PAIRS
from kernels.product_chain.levels import UNPACKS
from kernels.product_chain.narrow import (
    FOUR_BITS,
    FOUR_BITS_LESS_ZEROS,
    FP8,
    INT8,
    START,
    NarrowNumbers,
    product_of,
)
from kernels.product_chain.panels import PanelWeight
from kernels.product_chain.tile import PANEL
from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, Nf4Weight, QuantizedWeight
from kernels.quantization.int4 import MIDDLE
from kernels.quantization.nf4 import LEVELS
from kernels.quantization.nibbles import unpack_nibbles
from kernels.quantization.shapes import num_bytes
from kernels.simd import LANES
from kernels.weight_only_linear.tiles import group_size_of, scales_of, tiled

_PANELS_AT_ONCE = 4  # as they are packed, which limits the memory for it


@dataclass(frozen=True, slots=True)
class NarrowPanels:
    """A weight of values `(level - zero_point) * scale`; it has the attributes of a PanelWeight too.

    Output channels beyond `out_features` are padding.
    """

    # int8 or uint8 (e4m3) [num_panels, in_features / 2, PANEL, 2]; or of 4 bits, as `levels.line_of` tells,
    # int32 [num_panels, in_features / 2, LANES].
    data: Tensor
    scales: Tensor  # float32 or bfloat16 [num_panels, num_groups, PANEL]
    zero_points: Tensor | None  # int8, like scales
    table: Tensor | None  # float32 or bfloat16, as `levels.unpacking` takes it
    numbers: Tensor  # NarrowNumbers, int64
    format: int  # PAIRS or FLOATS: how rows are encoded
    bias: Tensor  # [num_panels * PANEL] float32
    in_features: int
    out_features: int

    @property
    def num_panels(self) -> int:
        """The number of panels."""
        return len(self.data)

    @property
    def num_words(self) -> int:
        """The words of a row's factors."""
        return self.in_features if self.format == FLOATS else self.in_features // 2

    @property
    def num_bytes(self) -> int:
        """The bytes that a product reads."""
        return num_bytes(self.data, self.scales, self.zero_points, self.bias)

    @property
    def depth(self) -> int:
        """The bytes of a row's factors."""
        return self.num_words * FACTOR_BYTES[self.format]

    @property
    def own_bytes(self) -> int:
        """The bytes that a thread needs for a panel."""
        return START + self.depth * PANEL


def addresses(weight: PanelWeight | NarrowPanels) -> tuple[int, int, int, int]:
    """Return where panels, offsets, scales and NarrowNumbers are; 0: there are none."""
    if isinstance(weight, NarrowPanels):
        return 0, 0, 0, weight.numbers.data_ptr()
    offsets, scales = (0 if one is None else one.data_ptr() for one in (weight.offsets, weight.scales))
    return weight.panels.data_ptr(), offsets, scales, 0


def pack_narrow(
    weight: QuantizedWeight, bias: Tensor | None = None, *, dtype: torch.dtype
) -> NarrowPanels | None:
    """Pack a weight of any format and its bias for rows in bfloat16 or float32.

    Returns None if the number of columns, or of a group's, is odd, and on a processor that cannot unpack it.
    Raises ValueError when the bias does not fit.
    """
    out_features, in_features = weight.shape
    if bias is not None and tuple(bias.shape) != (out_features,):
        raise ValueError(f"pack_narrow: the bias is {tuple(bias.shape)}, not {(out_features,)}")
    group_size, zero_points = group_size_of(weight), None
    if not UNPACKS or group_size % 2 or in_features % 2:
        return None
    scales = tiled(scales_of(weight))
    if isinstance(weight, Int4Weight | Int8Weight) and weight.zero_points is not None:
        zero_points = tiled(weight.zero_points.view(out_features, -1).to(torch.int8))
    kind, is_pairs = _kind(weight), dtype == torch.bfloat16 and not IS_WIDENED
    data, table = _data(weight), _table(weight, is_pairs=is_pairs)
    numbers = NarrowNumbers(
        product=product_of(kind, is_pairs=is_pairs),
        data=data.data_ptr(),
        table=0 if table is None else table.data_ptr(),
        scales=scales.data_ptr(),
        is_bfloat16_scales=scales.dtype == torch.bfloat16,
        zero_points=0 if zero_points is None else zero_points.data_ptr(),
        group_size=group_size,
        num_groups=scales.shape[1],
        in_features=in_features,
    )
    more = len(data) * PANEL - out_features
    return NarrowPanels(
        data=data,
        scales=scales,
        zero_points=zero_points,
        table=table,
        numbers=torch.tensor(numbers),
        format=FLOATS if dtype == torch.float32 else PAIRS,
        bias=torch.zeros(len(data) * PANEL) if bias is None else F.pad(bias.float(), (0, more)),
        in_features=in_features,
        out_features=out_features,
    )


def _kind(weight: QuantizedWeight) -> int:
    if isinstance(weight, Fp8Weight):
        return FP8
    if isinstance(weight, Int8Weight):
        return INT8
    has_zeros = isinstance(weight, Int4Weight) and weight.zero_points is not None
    return FOUR_BITS_LESS_ZEROS if has_zeros else FOUR_BITS


def _table(weight: QuantizedWeight, *, is_pairs: bool) -> Tensor | None:
    """Return the values of levels that are looked up, as `levels.unpacking` takes them."""
    if isinstance(weight, Int8Weight):
        return None
    if isinstance(weight, Fp8Weight):  # those that have no exponent
        return (torch.arange(8) / 512).repeat(4).bfloat16()
    levels = torch.arange(16.0)
    if isinstance(weight, Nf4Weight):
        levels = torch.tensor(LEVELS)
    elif weight.zero_points is None:
        levels -= MIDDLE
    else:
        return torch.cat((levels, levels - 16)).bfloat16()
    return levels.repeat(2).bfloat16() if is_pairs else levels


def _data(weight: QuantizedWeight) -> Tensor:
    rows, columns = weight.shape
    if isinstance(weight, Fp8Weight | Int8Weight):
        levels = weight.levels.view(torch.uint8) if isinstance(weight, Fp8Weight) else weight.levels
        padded = F.pad(levels, (0, 0, 0, -rows % PANEL))
        return padded.view(-1, PANEL, columns // 2, 2).transpose(1, 2).contiguous()
    words = torch.empty(-(-rows // PANEL), columns // 2, LANES, 4, dtype=torch.uint8)
    for first in range(0, len(words), _PANELS_AT_ONCE):
        some = weight.packed[first * PANEL : (first + _PANELS_AT_ONCE) * PANEL]
        # By pairs, their columns, and the two bytes of half a word, each of two channels.
        levels = tiled(unpack_nibbles(some)).view(-1, columns // 2, 2, 2, 2, LANES)
        low, high = levels.unbind(4)
        words[first : first + len(levels)] = (low | (high << 4)).flatten(2, 3).transpose(2, 3)
    return words.view(torch.int32).squeeze(3)
