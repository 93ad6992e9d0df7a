"""Packs two 4-bit levels per byte, in the order in which the matrix products read them.

Byte j of a span of 16 bytes holds level j (low half) and level j + 16 (high half) of its 32 levels. So each
half of a loaded tile belongs to a run of neighbouring activations.
"""

import torch
from torch import Tensor

SPAN = 32  # levels


def pack_nibbles(levels: Tensor) -> Tensor:
    """Pack levels 0..15 in uint8 [rows, columns] into uint8 [rows, columns / 2].

    Raises ValueError when columns are not a multiple of 32, or a level is over 15.
    """
    rows, columns = levels.shape
    if columns % SPAN:
        raise ValueError(f"pack_nibbles: {columns} columns are not a multiple of {SPAN}")
    if levels.dtype != torch.uint8 or int(levels.max()) > 15:
        raise ValueError(f"pack_nibbles: levels are {levels.dtype} up to {levels.max()}, not uint8 up to 15")
    low, high = levels.reshape(rows, -1, 2, SPAN // 2).unbind(2)
    return (low | (high << 4)).reshape(rows, columns // 2)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Return the uint8 levels [rows, columns] that `pack_nibbles` packed."""
    rows, count = packed.shape
    spans = packed.reshape(rows, -1, SPAN // 2)
    return torch.stack((spans & 15, spans >> 4), dim=2).reshape(rows, 2 * count)
