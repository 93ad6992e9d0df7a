"""Launch parameters that `gpu.py` and ahead-of-time compilation share."""

from pathlib import Path

TABLES = Path(__file__).parent / "tuned"
REDUCE_BLOCK = 512
SWAPPED_UP_TO = 32  # tokens of a tile with which the weight is the left operand
