"""Which product a weight gets: by the device, what the checkpoint holds, and what was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.device import converts_fp8
from kernels.expert_linear import ExpertWeights, pack_expert_weights
from kernels.quantization import Fp8Weight, Int8Weight, QuantizedWeight, quantize_fp8, quantize_int8
from kernels.scaled_linear import has_row_scales, pack_scaled_weight
from kernels.weight_only_linear import pack_linear_weight, takes
from worker.engine.models.layers.linear import Int8Linear, Linear, Projection
from worker.engine.models.layers.quantized_linear import ScaledLinear, WeightOnlyLinear

EightBits = Literal["int8", "fp8"]
QUANTIZE: dict[EightBits, Callable[[Tensor], Int8Weight | Fp8Weight]] = {
    "int8": quantize_int8,
    "fp8": quantize_fp8,
}


@dataclass(frozen=True, slots=True)
class Products:
    """Makes products. With `eight_bits`, floats are quantized to it, and so are tokens.

    On a GPU, tokens go to the format of a weight that is stored in 8 bits. A weight of 4 bits, or one whose
    rows have several scales or a zero point, is multiplied by tokens in 16 bits.
    """

    dtype: torch.dtype  # of activations where nothing is quantized
    is_gpu: bool
    device: torch.device
    eight_bits: EightBits | None = None

    @property
    def activation_dtype(self) -> torch.dtype:
        """Of what passes between products: on a CPU, int8 ones give float32."""
        return torch.float32 if self.eight_bits is not None and not self.is_gpu else self.dtype

    def take(self, weight: QuantizedWeight) -> bool:
        """Whether a product runs on the levels of a weight; otherwise it must come as floats."""
        if not self.is_gpu:
            return self.eight_bits == "int8" and isinstance(weight, Int8Weight) and weight.zero_points is None
        if isinstance(weight, Fp8Weight) and not converts_fp8(self.device):
            return False
        return self.dtype in {torch.float16, torch.bfloat16} and takes(weight)

    def quantize(self, weight: Tensor) -> Tensor | QuantizedWeight:
        """Return floats in the format asked for, if one was."""
        return weight if self.eight_bits is None else QUANTIZE[self.eight_bits](weight)

    def make(
        self, weight: Tensor | QuantizedWeight, bias: Tensor | None, *, is_gated: bool = False
    ) -> Projection:
        """Return the product; `is_gated` is for quantized weights on a GPU, and means `silu(gate) * up`."""
        if isinstance(weight, Tensor):
            dtype = self.activation_dtype
            return Linear(weight.to(dtype), None if bias is None else bias.to(dtype))
        if self.is_gpu:
            if self.eight_bits is not None and has_row_scales(weight):
                return ScaledLinear(pack_scaled_weight(weight, bias, is_gated=is_gated).to(self.device))
            return WeightOnlyLinear(pack_linear_weight(weight, bias, is_gated=is_gated).to(self.device))
        if not isinstance(weight, Int8Weight):
            raise TypeError(f"a CPU has no product for {type(weight).__name__}")
        return Int8Linear(weight, bias, dtype=self.activation_dtype)

    def make_experts(
        self, weight: Tensor | QuantizedWeight, num_experts: int, *, is_gated: bool
    ) -> ExpertWeights:
        """Return the rows of all experts, for tokens in `dtype` whatever the weight is in.

        An expert has few tokens: its time is that of reading the weight.
        """
        if isinstance(weight, Tensor):
            weight = weight.to(self.dtype)
        return pack_expert_weights(weight, num_experts, is_gated=is_gated).to(self.device)
