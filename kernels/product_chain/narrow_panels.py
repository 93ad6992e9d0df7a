"""Packs weights that a checkpoint has in 4 or 8 bits as chains unpack them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels import compiled
from kernels.product_chain.factors import FACTOR_BYTES, FLOATS, IS_WIDENED, PAIRS
from kernels.product_chain.narrow import FOUR_BITS, FP8, INT8, START, NarrowNumbers
from kernels.product_chain.panels import PanelWeight
from kernels.product_chain.tile import PANEL, WORD
from kernels.weight_only_linear.tiles import TiledWeight
from kernels.weight_only_linear.unpack import MOST_ROWS_OF_PAIRS, TILE

_KINDS = {torch.int32: FOUR_BITS, torch.int8: INT8, torch.uint8: FP8}
# Elements of a tile that hold eight columns.
_EIGHT_COLUMNS = (TILE, 8 * TILE, 8 * TILE)


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
        return START + max(self.num_words, MOST_ROWS_OF_PAIRS) * PANEL * WORD


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
