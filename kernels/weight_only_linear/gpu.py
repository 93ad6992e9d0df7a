"""Launches weight-only products on a GPU in a given regime."""

import functools

import torch
import triton
from torch import Tensor

from kernels.crossover import Regime
from kernels.quantization.nf4 import LEVELS
from kernels.weight_only_linear import kernel
from kernels.weight_only_linear.launches import DEQUANTIZE_BLOCK, REDUCE_BLOCK
from kernels.weight_only_linear.weight import LinearWeight


def run(x: Tensor, weight: LinearWeight, regime: Regime) -> Tensor:
    """Return the product of `kernels.weight_only_linear.weight_only_linear`."""
    num_tokens = x.shape[0]
    width = weight.out_features // 2 if weight.is_gated else weight.out_features
    out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    if num_tokens:
        {"gemv": _gemv, "tile": _tile, "dense": _dense}[regime.kind](x, weight, regime, out)
    return out


def _gemv(x: Tensor, weight: LinearWeight, regime: Regime, out: Tensor) -> None:
    grid = (x.shape[0], triton.cdiv(weight.out_features, regime.block_n))
    kernel.gemv[grid](
        x,
        *operands(weight),
        weight.bias,
        out,
        x.shape[0],
        weight.out_features,
        weight.in_features,
        x.stride(0),
        weight.num_groups,
        FORMAT=weight.format,
        GROUP=weight.group_size,
        GATED=weight.is_gated,
        BLOCK_N=regime.block_n,
        BLOCK_K=max(regime.block_k, weight.group_size),
        num_warps=regime.num_warps,
    )


def _tile(x: Tensor, weight: LinearWeight, regime: Regime, out: Tensor) -> None:
    num_tokens, rows = x.shape[0], weight.out_features
    block_k = min(regime.block_k, weight.group_size or regime.block_k)
    num_splits = regime.num_splits(rows, weight.in_features)
    # A split has whole groups, so that every split starts with its own scale.
    split_size = -(-weight.in_features // num_splits // 128) * 128 if num_splits > 1 else weight.in_features
    num_splits = -(-weight.in_features // split_size)
    target = out
    if num_splits > 1:
        target = torch.empty(num_splits, num_tokens, rows, dtype=torch.float32, device=x.device)
    kernel.multiply[(triton.cdiv(rows, regime.block_n), triton.cdiv(num_tokens, regime.block_m), num_splits)](
        x,
        *operands(weight),
        weight.bias,
        target,
        num_tokens,
        rows,
        weight.in_features,
        x.stride(0),
        weight.num_groups,
        split_size,
        FORMAT=weight.format,
        GROUP=weight.group_size,
        GATED=weight.is_gated,
        SPLIT=num_splits > 1,
        BLOCK_M=regime.block_m,
        BLOCK_N=regime.block_n,
        BLOCK_K=block_k,
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
    )
    if num_splits > 1:
        _reduce(target, weight, out)


def _dense(x: Tensor, weight: LinearWeight, regime: Regime, out: Tensor) -> None:  # noqa: ARG001
    rows, columns = weight.out_features, weight.in_features
    values = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    kernel.dequantize[(rows, triton.cdiv(columns, DEQUANTIZE_BLOCK))](
        *operands(weight),
        values,
        rows,
        columns,
        weight.num_groups,
        FORMAT=weight.format,
        GROUP=weight.group_size,
        BLOCK_K=DEQUANTIZE_BLOCK,
    )
    if weight.is_gated or weight.bias is not None:
        _reduce((x @ values.T).unsqueeze(0), weight, out)
    else:
        torch.mm(x, values.T, out=out)


def _reduce(partial: Tensor, weight: LinearWeight, out: Tensor) -> None:
    num_splits, num_tokens, rows = partial.shape
    kernel.reduce[(num_tokens, triton.cdiv(rows, REDUCE_BLOCK))](
        partial,
        weight.bias,
        out,
        num_tokens,
        rows,
        num_splits,
        GATED=weight.is_gated,
        BLOCK_N=REDUCE_BLOCK,
    )


def operands(weight: LinearWeight) -> tuple[Tensor | None, ...]:
    """Return the tensors of a weight in the order in which every kernel takes them."""
    nested = weight.nested
    codebook = _codebook(weight.data.device) if weight.format == "nf4" else None
    return (
        weight.data,
        weight.scales,
        weight.zero_points,
        None if nested is None else nested.scales,
        None if nested is None else nested.offset,
        codebook,
    )


@functools.cache
def _codebook(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, device=device)
