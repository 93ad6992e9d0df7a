"""Names the formats of quantized weights, and rounds a weight to one."""

from dataclasses import dataclass

from torch import Tensor

from kernels.quantization import QuantizedWeight, quantize_fp8, quantize_int4, quantize_int8, quantize_nf4
from worker.engine.quantize.compensation import quantize_fp8_compensated, quantize_int4_compensated

KINDS = ("int8", "int4", "fp8", "nf4")


@dataclass(frozen=True, slots=True, order=True)
class WeightFormat:
    """A format of weights; symmetric, int8 and fp8 with a scale a row, nf4 with nested scales."""

    kind: str  # of KINDS
    group_size: int | None = None  # of int4

    def __str__(self) -> str:
        return self.kind if self.group_size is None else f"{self.kind} in groups of {self.group_size}"

    def quantize(self, weight: Tensor, moments: Tensor | None = None) -> QuantizedWeight:
        """Return `weight` [out_features, in_features] rounded to this format.

        With the `moments` of its inputs [in_features, in_features], the rounding errors of int4 and fp8 are
        compensated. Raises ValueError if the weight does not fit the format.
        """
        if self.kind == "int4":
            group_size = self.group_size or 64
            if moments is None:
                return quantize_int4(weight, group_size=group_size)
            return quantize_int4_compensated(weight, moments, group_size=group_size)
        if self.kind == "fp8":
            return quantize_fp8(weight) if moments is None else quantize_fp8_compensated(weight, moments)
        return quantize_int8(weight) if self.kind == "int8" else quantize_nf4(weight, is_nested=True)
