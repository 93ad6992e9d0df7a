"""Checks the arguments of a chain of products and runs it on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import torch
from torch import Tensor

from kernels import compiled
from kernels.product_chain.cpu import EDGE_BYTES, GELU, NORM, NOTHING, SILU, LinkNumbers, run_links
from kernels.product_chain.factors import LARGEST
from kernels.product_chain.narrow_panels import NarrowPanels, addresses
from kernels.product_chain.panels import PanelWeight
from kernels.product_chain.rows import read_rows
from kernels.product_chain.tile import PANEL
from kernels.scratch import scratch
from kernels.threads import LINE, num_threads

# Rows that run together where threads share columns: each weight is read by one of them only.
MOST_SHARED_ROWS = 256
# Rows that one thread takes at once: what they need between two products stays in a core's own cache.
MOST_PIECE_ROWS = 32
# Pieces are worth it with so many rows, and weights that every thread can read from a near cache.
LEAST_ROWS_FOR_PIECES = 129
MOST_BYTES_FOR_PIECES = 4 << 20
# The products of bytes that cost as much as an element of other operators.
LEAST_PRODUCTS = 64


class After(Enum):
    """What follows a product in a chain."""

    NOTHING = NOTHING
    NORM = NORM  # it is added into the residual, and the sum normalised
    SILU = SILU  # its first half is gated by the second
    GELU = GELU


@dataclass(frozen=True, slots=True)
class Link:
    """A product and what follows it."""

    weight: PanelWeight | NarrowPanels
    after: After = After.NOTHING
    norm: Tensor | None = None  # [out_features] float32
    post_norm: Tensor | None = None  # [out_features] float32: normalises the product before it is added

    @property
    def out_features(self) -> int:
        """The length of a row that leaves the link."""
        is_gate = self.after in {After.SILU, After.GELU}
        return self.weight.out_features // 2 if is_gate else self.weight.out_features


class Chain:
    """Links that run one after the other on the same rows."""

    __slots__ = (
        "depth",
        "eps",
        "in_features",
        "links",
        "num_bytes",
        "out_features",
        "own_bytes",
        "table",
        "width",
    )

    def __init__(self, links: Sequence[Link], eps: float = 0.0) -> None:
        """Check that links fit each other; raise ValueError when they do not."""
        if links[-1].after not in {After.NOTHING, After.NORM}:
            raise ValueError(f"product_chain: {links[-1].after.name} must be followed by a product")
        for before, after in pairwise(links):
            if before.out_features != after.weight.in_features or before.after is After.NOTHING:
                raise ValueError(
                    f"product_chain: {before.after.name} of {before.out_features} before a weight of "
                    f"{after.weight.in_features} columns"
                )
        for link in links:
            shape = (link.weight.out_features,)
            if (link.after is After.NORM) != (link.norm is not None) or any(
                norm is not None and norm.shape != shape for norm in (link.norm, link.post_norm)
            ):
                raise ValueError(f"product_chain: norms do not fit {link.after.name} of {shape[0]}")
        self.links = tuple(links)
        self.eps = eps
        self.num_bytes = sum(link.weight.num_bytes for link in links)
        self.in_features = links[0].weight.in_features
        self.out_features = links[-1].out_features
        # The last product is written into the result, unless something follows it.
        kept = [link for link in links if link.after is not After.NOTHING]
        self.width = max((link.weight.num_panels * PANEL for link in kept), default=0)
        self.depth = max(link.weight.depth for link in links)
        narrow = [link.weight for link in links if isinstance(link.weight, NarrowPanels)]
        self.own_bytes = EDGE_BYTES + max((one.own_bytes for one in narrow), default=0)
        self.table = torch.tensor([_numbers(link) for link in links])


def is_available(dtype: torch.dtype = torch.int8) -> bool:
    """Return whether this processor multiplies int8, bfloat16 or float32 faster in chains than oneDNN does.

    That is so with AVX2, but where there is a matrix unit (AMX), oneDNN is faster at bfloat16
    (docs/decisions/0048).
    """
    if dtype not in {torch.int8, torch.bfloat16, torch.float32}:
        return False
    if dtype == torch.bfloat16 and compiled.has_feature("amx-bf16"):
        return False
    return compiled.has_feature("avx2") and compiled.has_feature("fma")


def run_chain(chain: Chain, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return what the last link leaves of `x`, [num_rows, out_features] float32.

    `x` is [num_rows, in_features] float32, dense. Before each product, a row is quantized by its own largest
    value where the weight is in int8, and rounded where it is in bfloat16 and was packed so. Links with a
    norm add into `residual`, [num_rows, hidden] float32, dense. int8 sums are exact and those of floats have
    a fixed order, so a row has the same bits in any batch. Raises ValueError on shapes that do not fit.
    """
    num_rows = len(x)
    needs = [link.weight.out_features for link in chain.links if link.after is After.NORM]
    if (
        x.shape != (num_rows, chain.in_features)
        or x.dtype != torch.float32
        or not x.is_contiguous()
        or any(residual is None or residual.shape != (num_rows, width) for width in needs)
        or (residual is not None and (residual.dtype != torch.float32 or not residual.is_contiguous()))
    ):
        given = None if residual is None else tuple(residual.shape)
        raise ValueError(
            f"product_chain: x is {tuple(x.shape)} {x.dtype}, residual {given}; "
            f"the chain takes {chain.in_features} columns"
        )
    out = torch.empty(num_rows, chain.out_features)
    if not num_rows:
        return out
    num_parts = num_threads(num_rows * chain.num_bytes // LEAST_PRODUCTS)
    is_shared, piece_rows = _split(chain, num_rows, num_parts)
    rows = piece_rows if is_shared else piece_rows * num_parts
    num_pieces = -(-num_rows // piece_rows)
    # Where threads meet, and the counters of the pieces.
    zeros = torch.zeros((1 + num_parts) * LINE + num_pieces * len(chain.links), dtype=torch.int64)
    _memory, (maxima, products, levels, own) = scratch(
        rows * 4, rows * chain.width * 4, rows * chain.depth, num_parts * chain.own_bytes
    )
    run_links(
        num_parts,
        (
            chain.table.data_ptr(),
            len(chain.links),
            zeros.data_ptr() + (1 + num_parts) * LINE * 8,
            num_rows,
            piece_rows,
            is_shared,
            x.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            out.data_ptr(),
            chain.eps,
            maxima,
            products,
            chain.width,
            levels,
            chain.depth,
            own,
            chain.own_bytes,
            zeros.data_ptr(),
        ),
    )
    return out


def rows_of(weight: PanelWeight, rows: Tensor) -> Tensor:
    """Return rows of a weight without its bias, float32 [num_rows, in_features], for `rows` int64, dense.

    Raises ValueError on anything else, and if the weight does not have them all.
    """
    if rows.dtype != torch.int64 or not rows.is_contiguous():
        raise ValueError(f"rows_of: rows are {tuple(rows.shape)} {rows.dtype}")
    out = torch.empty(len(rows), weight.in_features)
    if not read_rows(
        len(rows),
        rows.data_ptr(),
        weight.panels.data_ptr(),
        0 if weight.scales is None else weight.scales.data_ptr(),
        weight.format,
        LARGEST,  # a scale is that of a weight and of an activation
        weight.panels.shape[1],
        weight.in_features,
        weight.out_features,
        out.data_ptr(),
    ):
        raise ValueError(f"rows_of: a row is not from 0 to {weight.out_features - 1}")
    return out


def _split(chain: Chain, num_rows: int, num_parts: int) -> tuple[bool, int]:
    """Return whether threads share the columns of a piece, and the rows of one."""
    has_pieces = num_rows >= LEAST_ROWS_FOR_PIECES and chain.num_bytes <= MOST_BYTES_FOR_PIECES
    is_shared = num_parts > 1 and not has_pieces
    num_pieces = -(-num_rows // (MOST_SHARED_ROWS if is_shared else MOST_PIECE_ROWS))
    if not is_shared:
        num_pieces = -(-num_pieces // num_parts) * num_parts
    return is_shared, -(-num_rows // num_pieces)


def _numbers(link: Link) -> LinkNumbers:
    weight = link.weight
    panels, offsets, scales, narrow = addresses(weight)
    return LinkNumbers(
        panels,
        offsets,
        scales,
        weight.bias.data_ptr(),
        weight.in_features,
        weight.num_words,
        weight.out_features,
        weight.num_panels,
        link.after.value,
        0 if link.norm is None else link.norm.data_ptr(),
        0 if link.post_norm is None else link.post_norm.data_ptr(),
        weight.format,
        narrow,
    )
