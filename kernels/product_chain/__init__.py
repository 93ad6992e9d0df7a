"""Products in int8, bfloat16 or float32 with what stands between them, in one region, on x86."""

from kernels.product_chain.levels import UNPACKS
from kernels.product_chain.narrow_panels import NarrowPanels, pack_narrow
from kernels.product_chain.op import After, Chain, Link, is_available, rows_of, run_chain
from kernels.product_chain.panels import PanelWeight, pack_panels

__all__ = [
    "UNPACKS",
    "After",
    "Chain",
    "Link",
    "NarrowPanels",
    "PanelWeight",
    "is_available",
    "pack_narrow",
    "pack_panels",
    "rows_of",
    "run_chain",
]
