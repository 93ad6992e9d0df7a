"""Checks the arguments of weight-only products and runs them: on a GPU in the regime of its table."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels import device
from kernels.argmax import merged
from kernels.crossover import read_crossover
from kernels.threads import num_threads
from kernels.weight_only_linear import cpu
from kernels.weight_only_linear.launches import TABLES
from kernels.weight_only_linear.tiles import TiledWeight
from kernels.weight_only_linear.unpack import TILE
from kernels.weight_only_linear.weight import LinearWeight

_Kernels = dict[torch.dtype, Callable[..., None]]
# By the dtype of the data.
_MULTIPLY: _Kernels = {
    torch.int32: cpu.multiply_four_bits,
    torch.int8: cpu.multiply_int8,
    torch.uint8: cpu.multiply_fp8,
}
_DEQUANTIZE: _Kernels = {
    torch.int32: cpu.dequantize_four_bits,
    torch.int8: cpu.dequantize_int8,
    torch.uint8: cpu.dequantize_fp8,
}
# Elements of a tile that hold eight columns.
_EIGHT_COLUMNS = {torch.int32: TILE, torch.int8: 8 * TILE, torch.uint8: 8 * TILE}
# Tokens from which a CPU that multiplies bfloat16 in hardware gets the weight in it, unless it runs in
# a chain (docs/decisions/0056). By published rates of processors with AMX; ours have had none.
DENSE_TOKENS = 64


def weight_only_linear(x: Tensor, weight: LinearWeight | TiledWeight) -> Tensor:
    """Return `x @ weight.T + bias` in the dtype of `x`, [num_tokens, out_features]; half as wide if gated.

    `x` is [num_tokens, in_features] with a dense last axis: float16 or bfloat16 on a GPU; float32 or bfloat16
    on a CPU, which takes a TiledWeight. A gated weight gives `silu(gate) * up`. Sums are in float32. Their
    order does not depend on other tokens, except on a GPU by the regime, and on a CPU that multiplies
    bfloat16 in hardware for 64 or more tokens in it. Raises ValueError on anything else.
    """
    _check(x, weight)
    if isinstance(weight, TiledWeight):
        return _on_cpu(x, weight)
    if x.dtype not in {torch.float16, torch.bfloat16} or not device.uses_triton(x):
        raise ValueError(f"weight_only_linear: x is {x.dtype} on {x.device}, not 16 bits on a GPU")
    from kernels.weight_only_linear import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    table = read_crossover(TABLES, device.chip_name(x.device))
    return gpu.run(x, weight, table.choose(weight.format, x.shape[0]))


def _check(x: Tensor, weight: LinearWeight | TiledWeight) -> None:
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.stride(1) != 1:
        raise ValueError(
            f"weight_only_linear: x is {tuple(x.shape)} with strides {x.stride()}, "
            f"but the weight takes {weight.in_features} columns"
        )


def weight_only_argmax(x: Tensor, weight: TiledWeight) -> Tensor:
    """Return the channel with the largest output of each row, int64 [num_tokens]; the first of equal ones.

    It is -1 where that output is NaN or infinite. Outputs have the bits of `weight_only_linear` in float32.
    """
    _check(x, weight)
    num_parts = _num_parts(weight)
    largest = torch.full((num_parts, len(x)), -torch.inf)
    tokens = torch.zeros(num_parts, len(x), dtype=torch.int64)
    _run(_MULTIPLY, x.float().contiguous(), weight, largest, tokens)
    return merged(largest, tokens)


def _on_cpu(x: Tensor, weight: TiledWeight) -> Tensor:
    if x.dtype not in {torch.float32, torch.bfloat16} or x.device.type != "cpu":
        raise ValueError(
            f"weight_only_linear: x is {x.dtype} on {x.device}, not float32 or bfloat16 on a CPU"
        )
    is_dense = x.dtype == torch.bfloat16 and len(x) >= DENSE_TOKENS and device.multiplies_bfloat16()
    if is_dense:
        values = torch.empty(weight.in_features, weight.out_features, dtype=x.dtype)
        _run(_DEQUANTIZE, x.new_empty(0), weight, values)
        product = x @ values
        return product if weight.bias is None else product.add_(weight.bias)
    out = torch.empty(len(x), weight.out_features, dtype=x.dtype)
    _run(_MULTIPLY, x.float().contiguous(), weight, out)
    return out


def _num_parts(weight: TiledWeight) -> int:
    return min(num_threads(weight.in_features * weight.out_features), weight.data.shape[0])


def _run(
    kernels: dict[torch.dtype, Callable[..., None]],
    x: Tensor,
    weight: TiledWeight,
    out: Tensor,
    tokens: Tensor | None = None,
) -> None:
    """Call a kernel on all tiles; `x` is float32, and empty to dequantize.

    With `tokens`, `out` takes each part's largest outputs, [num_parts, num_rows].
    """
    scales = weight.scales
    num_parts = _num_parts(weight)
    width = cpu.SCRATCH + min(len(x), cpu.MOST_ROWS) * TILE
    scratch = torch.empty(num_parts, width)
    call = cpu.Call(
        num_rows=len(x),
        x=x.data_ptr(),
        data=weight.data.data_ptr(),
        eight_columns=_EIGHT_COLUMNS[weight.data.dtype],
        scales=scales.data_ptr(),
        is_bfloat16_scales=scales.dtype == torch.bfloat16,
        zero_points=0 if weight.zero_points is None else weight.zero_points.data_ptr(),
        table=0 if weight.table is None else weight.table.data_ptr(),
        bias=0 if weight.bias is None else weight.bias.data_ptr(),
        group_size=weight.group_size,
        num_groups=scales.shape[1],
        in_features=weight.in_features,
        out_features=weight.out_features,
        num_tiles=weight.data.shape[0],
        out=out.data_ptr(),
        is_bfloat16_out=out.dtype == torch.bfloat16,
        scratch=scratch.data_ptr(),
        scratch_width=width,
        largest=0 if tokens is None else out.data_ptr(),
        tokens=0 if tokens is None else tokens.data_ptr(),
    )
    kernels[weight.data.dtype](num_parts, tuple(call))
