"""Unpacks panels of weights that a checkpoint has in 4 or 8 bits, where tiles multiply them as any others.

A panel is unpacked into a thread's own memory before its rows are multiplied by it, so the weight stays
narrow in memory, and is read from there as it is. That needs panels as wide as the tiles of
`weight_only_linear`, so AVX512.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels import compiled
from kernels.compiled import Pointer, inlined, kernel
from kernels.product_chain.factors import FACTOR_BYTES, FLOATS, IS_WIDENED, PAIRS
from kernels.product_chain.panels import PanelWeight
from kernels.product_chain.tile import PANEL, WORD
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, load, store, uint8_at, uint32_at
from kernels.weight_only_linear.cpu import Call, set_table, start_run
from kernels.weight_only_linear.tiles import TiledWeight
from kernels.weight_only_linear.unpack import (
    MOST_DIRECT_ROWS,
    MOST_ROWS_OF_PAIRS,
    NUM_FACTORS,
    TILE,
    multiply_add,
    multiply_add_pairs,
    unpack,
    unpack_pairs,
)

# Where a panel or products begin in a thread's memory, in bytes: behind the factors of a group.
_START = NUM_FACTORS * 4
_FOUR_BITS, _INT8, _FP8 = range(3)
_KINDS = {torch.int32: _FOUR_BITS, torch.int8: _INT8, torch.uint8: _FP8}
# Elements of a tile that hold eight columns.
_EIGHT_COLUMNS = (TILE, 8 * TILE, 8 * TILE)


class NarrowNumbers(NamedTuple):
    """A narrow weight with its tensors by their addresses; all but the kind is as in `Call`."""

    kind: int
    data: int
    eight_columns: int
    scales: int
    is_bfloat16_scales: bool
    zero_points: int
    table: int
    group_size: int
    num_groups: int
    in_features: int


@dataclass(frozen=True, slots=True)
class NarrowPanels:
    """A weight in tiles that are panels too; it has the attributes of a PanelWeight that a chain reads."""

    tiles: TiledWeight
    numbers: Tensor  # NarrowNumbers, int64
    format: int  # PAIRS or FLOATS, once unpacked
    bias: Tensor  # [num_panels * PANEL] float32
    in_features: int
    out_features: int

    @property
    def num_panels(self) -> int:
        """The number of panels."""
        return len(self.tiles.data)

    @property
    def num_words(self) -> int:
        """The words of a row of an unpacked panel."""
        return self.in_features if self.format == FLOATS else -(-self.in_features // 2)

    @property
    def num_bytes(self) -> int:
        """The bytes that a product reads."""
        return self.tiles.num_bytes

    @property
    def depth(self) -> int:
        """The bytes of a row's factors."""
        return self.num_words * FACTOR_BYTES[self.format]

    @property
    def unpacked_bytes(self) -> int:
        """The bytes that a thread needs for a panel, or for the products of few rows."""
        return _START + max(self.num_words, MOST_ROWS_OF_PAIRS) * PANEL * WORD


def addresses(weight: PanelWeight | NarrowPanels) -> tuple[int, int, int, int]:
    """Return where panels, offsets, scales and NarrowNumbers are; 0: there are none."""
    if isinstance(weight, NarrowPanels):
        return 0, 0, 0, weight.numbers.data_ptr()
    offsets, scales = (0 if one is None else one.data_ptr() for one in (weight.offsets, weight.scales))
    return weight.panels.data_ptr(), offsets, scales, 0


def unpacks(dtype: torch.dtype) -> bool:
    """Return whether narrow weights run in chains here, with products in bfloat16 or float32."""
    has_panels = PANEL == TILE and compiled.has_feature("avx512f")
    return has_panels and (dtype == torch.float32 or (dtype == torch.bfloat16 and not IS_WIDENED))


def pack_narrow(tiles: TiledWeight, dtype: torch.dtype) -> NarrowPanels | None:
    """Return a tiled weight for products in `dtype`, to which it is rounded; None where groups are odd."""
    if dtype == torch.bfloat16 and tiles.group_size % 2 and tiles.group_size < tiles.in_features:
        return None
    kind = _KINDS[tiles.data.dtype]
    numbers = NarrowNumbers(
        kind=kind,
        data=tiles.data.data_ptr(),
        eight_columns=_EIGHT_COLUMNS[kind],
        scales=tiles.scales.data_ptr(),
        is_bfloat16_scales=tiles.scales.dtype == torch.bfloat16,
        zero_points=0 if tiles.zero_points is None else tiles.zero_points.data_ptr(),
        table=0 if tiles.table is None else tiles.table.data_ptr(),
        group_size=tiles.group_size,
        num_groups=tiles.scales.shape[1],
        in_features=tiles.in_features,
    )
    num_columns, bias = len(tiles.data) * PANEL, tiles.bias
    return NarrowPanels(
        tiles=tiles,
        numbers=torch.tensor(numbers),
        format=FLOATS if dtype == torch.float32 else PAIRS,
        bias=torch.zeros(num_columns) if bias is None else F.pad(bias, (0, num_columns - len(bias))),
        in_features=tiles.in_features,
        out_features=tiles.out_features,
    )


@inlined
def _call(numbers: Pointer) -> Call:
    """Return the Call of NarrowNumbers, without tokens."""
    return Call(
        num_rows=0,
        x=0,
        data=numbers[1],
        eight_columns=numbers[2],
        scales=numbers[3],
        is_bfloat16_scales=numbers[4] != 0,
        zero_points=numbers[5],
        table=numbers[6],
        bias=0,
        group_size=numbers[7],
        num_groups=numbers[8],
        in_features=numbers[9],
        out_features=0,
        num_tiles=0,
        out=0,
        is_bfloat16_out=False,
        scratch=0,
        scratch_width=0,
        largest=0,
        tokens=0,
    )


@inlined
def _unpack(source: Pointer, panel: int, is_pairs: bool, memory: int, call: Call) -> None:
    """Write a panel as tiles read it, group by group."""
    factors, unpacked = float32_at(memory), memory + _START
    set_table(factors, call)
    column = 0
    while column < call.in_features:
        start, depth = start_run(panel, column, call.in_features, factors, call)
        if is_pairs:
            even = depth // 2 * 2
            unpack_pairs(even, source, start, factors, bfloat16_at(unpacked), column * TILE)
            if even < depth:
                # The last column, whose neighbour is zero; only rows with one scale have an odd number.
                last = unpacked + (column + even) * TILE * 2
                unpack(1, source, start + even * TILE, factors, float32_at(last), 0)
                for row in range(TILE):
                    value = load(float32_at(last), row)  # where its pair will be
                    store(bfloat16_at(last), 2 * row, value)
                    store(bfloat16_at(last), 2 * row + 1, 0)
        else:
            unpack(depth, source, start, factors, float32_at(unpacked), column * TILE)
        column += depth


@kernel
def unpack_panel(address: int, panel: int, num_words: int, is_pairs: bool, memory: int) -> int:
    """Write a panel of NarrowNumbers into a thread's memory; return where the weight's first panel would be.

    All are given by their addresses. Pairs are bfloat16 [num_words, PANEL, 2], others float32.
    """
    numbers = int64_at(address)
    kind, call = numbers[0], _call(numbers)
    if kind == _FOUR_BITS:
        _unpack(uint32_at(call.data), panel, is_pairs, memory, call)
    elif kind == _INT8:
        _unpack(int8_at(call.data), panel, is_pairs, memory, call)
    else:
        _unpack(uint8_at(call.data), panel, is_pairs, memory, call)
    return memory + _START - panel * num_words * PANEL * WORD


@inlined
def are_few(num_rows: int, in_features: int, is_pairs: bool) -> bool:
    """Return whether levels are unpacked in registers for so many rows, and no panel is written."""
    if is_pairs:
        return num_rows <= MOST_ROWS_OF_PAIRS and in_features % 2 == 0
    return num_rows <= MOST_DIRECT_ROWS


@inlined
def _multiply(
    num_rows: int, source: Pointer, panel: int, is_pairs: bool, x: int, depth: int, memory: int, call: Call
) -> None:
    """Write the products of few rows and a panel, group by group."""
    factors, sums = float32_at(memory), float32_at(memory + _START)
    set_table(factors, call)
    for index in range(num_rows * PANEL):
        store(sums, index, 0)
    column = 0
    while column < call.in_features:
        start, length = start_run(panel, column, call.in_features, factors, call)
        if is_pairs:
            pairs, stride = bfloat16_at(x), depth // 2
            multiply_add_pairs(num_rows, length, source, start, factors, pairs, column, stride, sums, 0)
        else:
            floats, stride = float32_at(x), depth // 4
            multiply_add(num_rows, length, source, start, factors, floats, column, stride, sums, 0)
        column += length


@kernel
def multiply_few(
    address: int, panel: int, num_rows: int, is_pairs: bool, x: int, depth: int, memory: int
) -> int:
    """Write the products of few rows and a panel, float32 [num_rows, PANEL]; return where they begin.

    `x` [num_rows, depth] bytes are factors as `encode_row` writes them; all are given by their addresses.
    Products have no bias, and else the bits of those by the unpacked panel.
    """
    numbers = int64_at(address)
    kind, call = numbers[0], _call(numbers)
    if kind == _FOUR_BITS:
        _multiply(num_rows, uint32_at(call.data), panel, is_pairs, x, depth, memory, call)
    elif kind == _INT8:
        _multiply(num_rows, int8_at(call.data), panel, is_pairs, x, depth, memory, call)
    else:
        _multiply(num_rows, uint8_at(call.data), panel, is_pairs, x, depth, memory, call)
    return memory + _START
