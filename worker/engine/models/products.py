"""Chooses the matrix product of a weight by device, stored format and configured dtype."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.device import converts_fp8
from kernels.expert_linear import ExpertWeights, pack_expert_weights
from kernels.int8_linear import is_exact
from kernels.product_chain import is_available, pack_narrow, pack_panels
from kernels.quantization import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Nf4Weight,
    QuantizedWeight,
    quantize_fp8,
    quantize_int8,
)
from kernels.scaled_linear import has_row_scales, pack_scaled_weight
from kernels.weight_only_linear import pack_linear_weight, pack_tiled_weight, takes
from worker.engine.models.layers.linear import ChainedLinear, Linear, Projection, int8_projection
from worker.engine.models.layers.quantized_linear import ScaledLinear, WeightOnlyLinear

EightBits = Literal["int8", "fp8"]
QUANTIZE: dict[EightBits, Callable[[Tensor], Int8Weight | Fp8Weight]] = {
    "int8": quantize_int8,
    "fp8": quantize_fp8,
}

FORMATS: dict[object, str] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    Int8Weight: "int8",
    Fp8Weight: "fp8",
    Int4Weight: "int4",
    Nf4Weight: "nf4",
}


@dataclass(frozen=True, slots=True)
class Products:
    """Makes products of weights. With `eight_bits`, float weights are quantized to it, and so are tokens.

    On a GPU, tokens are then quantized to the format of a weight that is stored in 8 bits. A weight of 4
    bits, or one whose rows have several scales or a zero point, is multiplied by tokens in 16 bits. On a CPU
    such a weight is quantized again, and tokens stay float32 where sums of int8 products would saturate.
    Without `eight_bits`, a CPU multiplies any format by tokens in `dtype`, and bfloat16 too where it runs
    `dtype` in chains.
    """

    dtype: torch.dtype  # of activations where nothing is quantized
    is_gpu: bool
    device: torch.device
    eight_bits: EightBits | None = None

    @property
    def activation_dtype(self) -> torch.dtype:
        """The dtype of activations between products; a CPU's chains and int8 products return float32."""
        is_float32 = self._in_chains or (self.eight_bits is not None and not self.is_gpu)
        return torch.float32 if is_float32 else self.dtype

    @property
    def _in_chains(self) -> bool:
        """Whether weights of floats are multiplied in our own regions, by tokens rounded to `dtype`."""
        return self.eight_bits is None and not self.is_gpu and is_available(self.dtype)

    def take(self, weight: QuantizedWeight) -> bool:
        """Return whether a product can run on a weight's levels; otherwise it must be dequantized."""
        if not self.is_gpu:
            return self.eight_bits is None or (isinstance(weight, Int8Weight) and weight.zero_points is None)
        if isinstance(weight, Fp8Weight) and not converts_fp8(self.device):
            return False
        return self.dtype in {torch.float16, torch.bfloat16} and takes(weight)

    def keeps(self, weight: Tensor) -> bool:
        """Return whether a product runs on a bfloat16 weight as it is stored."""
        return weight.dtype == torch.bfloat16 and self._in_chains

    def format_of(self, weight: Tensor | QuantizedWeight) -> str:
        """Return the name of the format that a product holds this weight in."""
        if isinstance(weight, Tensor):
            return FORMATS[torch.bfloat16 if self.keeps(weight) else self._float_dtype]
        return FORMATS[type(weight)]

    @property
    def _float_dtype(self) -> torch.dtype:
        """The dtype of a float weight that no product keeps."""
        return self.dtype if self._in_chains else self.activation_dtype

    def quantize(self, weight: Tensor) -> Tensor | QuantizedWeight:
        """Return a float weight quantized to `eight_bits`, or unchanged without it."""
        return weight if self.eight_bits is None else QUANTIZE[self.eight_bits](weight)

    def make(
        self, weight: Tensor | QuantizedWeight, bias: Tensor | None, *, is_gated: bool = False
    ) -> Projection:
        """Return the product of a weight; `is_gated` (quantized, on a GPU) makes it `silu(gate) * up`."""
        if isinstance(weight, Tensor):
            if self._in_chains:
                kept = weight if self.keeps(weight) else weight.to(self.dtype)
                return ChainedLinear(pack_panels(kept, bias, rounds=self.dtype == torch.bfloat16))
            dtype = self.activation_dtype
            return Linear(weight.to(dtype), None if bias is None else bias.to(dtype))
        if self.is_gpu:
            if self.eight_bits is not None and has_row_scales(weight):
                return ScaledLinear(pack_scaled_weight(weight, bias, is_gated=is_gated).to(self.device))
            return WeightOnlyLinear(pack_linear_weight(weight, bias, is_gated=is_gated).to(self.device))
        if self.eight_bits is not None and isinstance(weight, Int8Weight) and (is_available() or is_exact()):
            return int8_projection(weight, bias, self.activation_dtype)
        if self._in_chains and (narrow := pack_narrow(weight, bias, dtype=self.dtype)) is not None:
            return ChainedLinear(narrow)
        return WeightOnlyLinear(pack_tiled_weight(weight, bias), self.dtype if self._in_chains else None)

    def make_experts(
        self, weight: Tensor | QuantizedWeight, num_experts: int, *, is_gated: bool
    ) -> ExpertWeights:
        """Return the packed weights of all experts, for tokens in `dtype` whatever the weight's format.

        An expert has few tokens, so its time is the time of reading the weight.
        """
        if isinstance(weight, Tensor):
            weight = weight.to(self.dtype)
        return pack_expert_weights(weight, num_experts, is_gated=is_gated).to(self.device)
