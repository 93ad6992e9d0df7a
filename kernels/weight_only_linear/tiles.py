"""Packs a weight as the CPU's kernel reads it: in tiles of 64 rows, column by column."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, Nf4Weight, QuantizedWeight
from kernels.quantization.int4 import MIDDLE
from kernels.quantization.nf4 import BLOCK, LEVELS, NestedScales
from kernels.quantization.nibbles import unpack_nibbles
from kernels.quantization.shapes import num_bytes
from kernels.weight_only_linear.unpack import COLUMNS_OF_A_WORD, TILE

# The kernel reads fp8 as float16, whose exponents have another bias.
FP8_FACTOR = 2.0**8
_TILES_AT_ONCE = 16  # as they are packed, which limits the memory for it


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A weight of values `(level - zero_point) * scale`; rows beyond `out_features` are padding.

    A tile of `data` is int8 or uint8 (fp8) [in_features, 64], or of 4 bits int32 [in_features / 8, 64].
    """

    data: Tensor  # [num_tiles, ...]
    scales: Tensor  # float32 or bfloat16 [num_tiles, num_groups, 64]
    zero_points: Tensor | None  # int8, like scales
    table: Tensor | None  # float32 [16], the values of levels of 4 bits
    bias: Tensor | None  # float32 [out_features]
    group_size: int  # columns that share a scale
    in_features: int
    out_features: int

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.data, self.scales, self.zero_points, self.table, self.bias)


def pack_tiled_weight(weight: QuantizedWeight, bias: Tensor | None = None) -> TiledWeight:
    """Pack `weight` of any format for `weight_only_linear` on a CPU.

    Raises ValueError when the bias does not fit.
    """
    out_features, in_features = weight.shape
    if bias is not None and tuple(bias.shape) != (out_features,):
        raise ValueError(f"weight_only_linear: the bias is {tuple(bias.shape)}, not {(out_features,)}")
    scales, zero_points = scales_of(weight), None
    if isinstance(weight, Int4Weight | Int8Weight) and weight.zero_points is not None:
        zero_points = tiled(weight.zero_points.view(out_features, -1).to(torch.int8))
    return TiledWeight(
        data=_data(weight),
        scales=tiled(scales * FP8_FACTOR if isinstance(weight, Fp8Weight) else scales),
        zero_points=zero_points,
        table=_table(weight),
        bias=None if bias is None else bias.float(),
        group_size=group_size_of(weight),
        in_features=in_features,
        out_features=out_features,
    )


def rows_of(weight: TiledWeight, rows: Tensor) -> Tensor:
    """Return rows of a symmetric int8 weight as float32 [num_rows, in_features], by their int64 ids."""
    tiles, places = rows // TILE, rows % TILE
    return weight.data[tiles, :, places].float() * weight.scales[tiles, 0, places].unsqueeze(1)


def scales_of(weight: QuantizedWeight) -> Tensor:
    """Return the scales of any format, bfloat16 or float32 [out_features, num_groups]; NaN of an e4m3 NaN."""
    if isinstance(weight, Fp8Weight):
        scales = weight.scales.float().repeat_interleave(weight.block[0], dim=0)[: weight.shape[0]]
        is_nan = weight.levels.view(torch.uint8).bitwise_and(0x7F) == 0x7F
        if bool(is_nan.any()):  # a level that kernels would read as a number
            places = is_nan.nonzero()
            scales[places[:, 0], places[:, 1] // weight.block[1]] = torch.nan
        return scales
    if isinstance(weight, Int8Weight):
        return weight.scales.unsqueeze(1).float()
    scales = weight.scales.dequantize() if isinstance(weight.scales, NestedScales) else weight.scales
    return scales if scales.dtype == torch.bfloat16 else scales.float()


def group_size_of(weight: QuantizedWeight) -> int:
    """Return how many columns share a scale."""
    if isinstance(weight, Int4Weight):
        return weight.group_size
    if isinstance(weight, Fp8Weight):
        return weight.block[1]
    return BLOCK if isinstance(weight, Nf4Weight) else weight.shape[1]


def _table(weight: QuantizedWeight) -> Tensor | None:
    if isinstance(weight, Nf4Weight):
        return torch.tensor(LEVELS)
    if isinstance(weight, Int4Weight):
        return torch.arange(16.0) - (MIDDLE if weight.zero_points is None else 0)
    return None


def _data(weight: QuantizedWeight) -> Tensor:
    rows, columns = weight.shape
    num_tiles = -(-rows // TILE)
    if isinstance(weight, Int4Weight | Nf4Weight):
        words = torch.empty(num_tiles, columns // COLUMNS_OF_A_WORD, TILE, 4, dtype=torch.uint8)
        for first in range(0, num_tiles, _TILES_AT_ONCE):
            some = slice(first * TILE, (first + _TILES_AT_ONCE) * TILE)
            levels = tiled(unpack_nibbles(weight.packed[some]))
            low, high = levels.view(len(levels), -1, COLUMNS_OF_A_WORD // 2, 2, TILE).unbind(3)
            words[first : first + len(levels)] = (low | (high << 4)).transpose(2, 3)
        return words.view(torch.int32).squeeze(3)
    levels = weight.levels.view(torch.uint8) if isinstance(weight, Fp8Weight) else weight.levels
    return tiled(levels)


def tiled(matrix: Tensor) -> Tensor:
    """Return [rows, columns] as [num_tiles, columns, 64], padded with zeros."""
    padded = pad(matrix, (0, 0, 0, -len(matrix) % TILE))
    return padded.view(-1, TILE, matrix.shape[1]).transpose(1, 2).contiguous()
