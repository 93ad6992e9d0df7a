"""Launch parameters that `gpu.py` and ahead-of-time compilation share."""

from pathlib import Path

TABLES = Path(__file__).parent / "tuned"
REDUCE_BLOCK = 512
DEQUANTIZE_BLOCK = 1024
