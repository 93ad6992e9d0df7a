"""Int8 products with what stands between them, in one parallel region, for processors with AVX512 VNNI."""

from kernels.int8_chain.op import After, Chain, Link, is_available, run_chain
from kernels.int8_chain.panels import PanelWeight, pack_panels

__all__ = ["After", "Chain", "Link", "PanelWeight", "is_available", "pack_panels", "run_chain"]
