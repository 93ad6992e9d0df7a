"""How kernels are launched, for those that launch them and those that compile them ahead of time."""

from pathlib import Path

TABLES = Path(__file__).parent / "tuned"
REDUCE_BLOCK = 512
SWAPPED_UP_TO = 32  # tokens of a tile with which the weight is the left operand
