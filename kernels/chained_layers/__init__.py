"""All layers of a Step whose products run in chains, in one parallel region, for CPUs with AVX512."""

from kernels.chained_layers.op import Layer, Layers, run_layers
from kernels.product_chain import is_available

__all__ = ["Layer", "Layers", "is_available", "run_layers"]
