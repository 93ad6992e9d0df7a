"""Checks the arguments of the largest product and finds it on a CPU."""

import torch
from torch import Tensor

from kernels.argmax import merged
from kernels.panel_argmax.cpu import ArgmaxCall, find_largest
from kernels.product_chain import NarrowPanels, PanelWeight
from kernels.product_chain.factors import encode_rows
from kernels.product_chain.narrow_panels import addresses
from kernels.product_chain.tile import PANEL, TILE_ROWS
from kernels.scratch import scratch
from kernels.threads import num_threads


def panel_argmax(x: Tensor, weight: PanelWeight | NarrowPanels) -> Tensor:
    """Return the channel with the largest product of each row, int64 [num_rows]; the first of equal ones.

    It is -1 where that product is NaN or infinite. `x` is [num_rows, in_features] float32, dense. Products
    have the bits of `run_chain`. Raises ValueError on anything else.
    """
    num_rows, in_features = x.shape
    if in_features != weight.in_features or x.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError(
            f"panel_argmax: x is {tuple(x.shape)} {x.dtype}; the weight takes {weight.in_features} columns"
        )
    num_parts = min(num_threads(), weight.num_panels)
    own_bytes = num_rows * PANEL * 4 + weight.own_bytes if isinstance(weight, NarrowPanels) else 0
    _memory, (levels, maxima, products, own) = scratch(
        num_rows * weight.depth,
        num_rows * 4,
        num_parts * TILE_ROWS * PANEL * 4,
        num_parts * own_bytes,
    )
    panels, offsets, scales, narrow = addresses(weight)
    rows = (num_rows, in_features, x.data_ptr(), levels, weight.depth, maxima)
    encode_rows(num_threads(x.numel()), weight.format, *rows)
    counter = torch.zeros(1, dtype=torch.int64)
    largest = torch.full((num_parts, num_rows), -torch.inf)
    tokens = torch.zeros(num_parts, num_rows, dtype=torch.int64)
    call = ArgmaxCall(
        num_rows=num_rows,
        levels=levels,
        depth=weight.depth,
        format=weight.format,
        maxima=maxima,
        panels=panels,
        offsets=offsets,
        scales=scales,
        narrow=narrow,
        bias=weight.bias.data_ptr(),
        num_words=weight.num_words,
        num_panels=weight.num_panels,
        out_features=weight.out_features,
        counter=counter.data_ptr(),
        products=products,
        largest=largest.data_ptr(),
        tokens=tokens.data_ptr(),
        own=own,
        own_bytes=own_bytes,
    )
    find_largest(num_parts, tuple(call))
    return merged(largest, tokens)
