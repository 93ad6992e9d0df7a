"""All layers of a Step with int8 products, in one parallel region, for processors with AVX512 VNNI."""

from kernels.int8_chain import is_available
from kernels.int8_layers.op import Layer, Layers, run_layers

__all__ = ["Layer", "Layers", "is_available", "run_layers"]
