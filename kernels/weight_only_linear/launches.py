"""How kernels are launched, for those that launch them and those that compile them ahead of time."""

from pathlib import Path

TABLES = Path(__file__).parent / "tuned"
REDUCE_BLOCK = 512
DEQUANTIZE_BLOCK = 1024
