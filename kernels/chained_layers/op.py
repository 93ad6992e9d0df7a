"""Checks the arguments of layers that run in one parallel region, and runs them on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.chained_layers.cpu import (
    COUNTERS,
    MOST_LINKS,
    LayerNumbers,
    LayersCall,
    run_bfloat16,
    run_float32,
    run_int8,
)
from kernels.kv_write import HeadNorms, LayerCache
from kernels.paged_attention import AttentionPlan
from kernels.paged_attention.op import NO_WINDOW
from kernels.product_chain import Chain
from kernels.scratch import scratch
from kernels.threads import LINE, num_threads

# The most rows that run together, so that what they need between two products stays small.
MOST_ROWS = 256

_RUN = {torch.float32: run_float32, torch.bfloat16: run_bfloat16, torch.int8: run_int8}


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer from the cache write of its query, key and value to those of the next layer."""

    angles: Tensor  # [max_position, 2, head_dim / 2] float32, as `rotary_kv_write` takes them
    norms: HeadNorms | None = None
    window: int | None = None  # tokens that a row reads, itself included; None: all up to it
    chain: Chain | None = None  # what follows the attention; None only for the last layer


class Layers:
    """Layers that run one after the other on a Step's rows, the last of them up to its attention."""

    __slots__ = (
        "_known",
        "angle_shapes",
        "depth",
        "eps",
        "head_eps",
        "layers",
        "own_bytes",
        "scale",
        "shapes",
        "soft_cap",
        "width",
    )

    def __init__(self, layers: Sequence[Layer], *, scale: float, soft_cap: float | None = None) -> None:
        """Check that layers fit each other; raise ValueError when they do not."""
        chains = [layer.chain for layer in layers[:-1]]
        if layers[-1].chain is not None or None in chains:
            raise ValueError("chained_layers: each layer but the last needs a chain")
        known = [chain for chain in chains if chain is not None]
        if any(len(chain.links) > MOST_LINKS for chain in known):
            raise ValueError(f"chained_layers: a chain has more than {MOST_LINKS} links")
        self.layers = tuple(layers)
        self.scale = scale
        self.soft_cap = soft_cap
        self.width = max((chain.width for chain in known), default=0)
        self.depth = max((chain.depth for chain in known), default=0)
        self.own_bytes = max((chain.own_bytes for chain in known), default=0)
        self.eps = known[0].eps if known else 0.0
        # The lengths of rows that enter and leave a chain, and of the residual.
        self.shapes = {(one.in_features, one.out_features, one.links[0].weight.out_features) for one in known}
        self.angle_shapes = {tuple(layer.angles.shape[1:]) for layer in layers}
        norms = layers[0].norms
        self.head_eps = 0.0 if norms is None else norms.eps
        self._known: tuple[Sequence[LayerCache], Tensor] = ((), torch.empty(0))

    def table(self, caches: Sequence[LayerCache]) -> Tensor:
        """Return the numbers of all layers with their caches; the same list of caches must not change.

        Several threads may call it: who uses the table keeps it, as another call may replace it.
        """
        before, table = self._known
        if caches is not before:
            lines = [_numbers(layer, cache) for layer, cache in zip(self.layers, caches, strict=True)]
            table = torch.tensor(lines)
            self._known = caches, table
        return table


def run_layers(
    layers: Layers,
    qkv: Tensor,
    residual: Tensor,
    positions: Tensor,
    slots: Tensor,
    caches: Sequence[LayerCache],
    plan: AttentionPlan,
) -> Tensor:
    """Return the result of the last layer's attention, [num_rows, num_heads * head_dim] float32.

    `qkv` [num_rows, (num_heads + 2 * num_kv_heads) * head_dim] is the first layer's, and is overwritten;
    `residual` [num_rows, hidden] changes in place; both are float32, dense. `positions` and `slots` are as
    `rotary_kv_write` takes them. No Sequence may read what another one writes in the same Step. A row has the
    same bits in any Step. Raises ValueError on shapes and dtypes that do not fit.
    """
    _check(layers, qkv, residual, positions, slots, cache=caches[0], plan=plan)
    num_rows, num_parts, pieces = len(qkv), num_threads(), cut(plan, len(qkv))
    _, num_kv_heads, head_dim, block_size = caches[0].keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    rows, table, lines = int(pieces[:, 3].max()), torch.from_numpy(pieces), layers.table(caches)
    # Where threads meet, and the counters of pieces and layers.
    num_zeros = (1 + num_parts) * LINE + len(pieces) * len(layers.layers) * COUNTERS
    zeros, attended = torch.zeros(num_zeros, dtype=torch.int64), torch.empty(num_rows, num_heads * head_dim)
    _memory, parts = _scratch(layers, attended.nbytes, rows, num_parts, head_dim)
    query, heads, maxima, products, levels, own = parts
    call = LayersCall(
        lines.data_ptr(),
        len(layers.layers),
        table.data_ptr(),
        len(pieces),
        zeros.data_ptr() + (1 + num_parts) * LINE * 8,
        zeros.data_ptr(),
        num_rows,
        qkv.data_ptr(),
        query,
        attended.data_ptr(),
        residual.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        layers.scale,
        layers.soft_cap or 0.0,
        layers.head_eps,
        layers.eps,
        heads,
        rows,
        maxima,
        products,
        layers.width,
        levels,
        layers.depth,
        own,
        layers.own_bytes,
    )
    _RUN[caches[0].keys.dtype](num_parts, tuple(call), plan.numbers)
    return attended


def _scratch(
    layers: Layers, query_bytes: int, rows: int, num_parts: int, head_dim: int
) -> tuple[Tensor, list[int]]:
    """Return memory for queries, for heads, and for what rows need between two products."""
    return scratch(
        query_bytes,
        num_parts * 2 * head_dim * 4,
        rows * 4,
        rows * layers.width * 4,
        rows * layers.depth,
        num_parts * layers.own_bytes,
    )


def cut(plan: AttentionPlan, num_rows: int) -> np.ndarray:
    """Return the plan's items in pieces of at most about MOST_ROWS rows, as lines of `Piece`, int64.

    Pieces are about as long as each other; one has at most the rows of an item more.
    """
    if num_rows <= MOST_ROWS:
        return np.array([[0, len(plan.first_rows), 0, num_rows]])
    most_rows = -(-num_rows // -(-num_rows // MOST_ROWS))
    first_rows, lengths = plan.first_rows.numpy(), plan.num_rows.numpy()
    starts = np.flatnonzero(np.diff(first_rows // most_rows, prepend=-1))
    ends = np.append(starts[1:], len(first_rows))
    end_rows = first_rows[ends - 1] + lengths[ends - 1]
    return np.stack([starts, ends, first_rows[starts], end_rows - first_rows[starts]], axis=1)


def _check(
    layers: Layers,
    qkv: Tensor,
    residual: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    cache: LayerCache,
    plan: AttentionPlan,
) -> None:
    _, num_kv_heads, head_dim, _ = cache.keys.shape
    num_rows, width = qkv.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    floats = (qkv, residual)
    if (
        not num_rows == len(positions) == len(slots) == len(plan.places) == len(residual)
        or width % head_dim
        or num_heads < 1
        or num_heads % num_kv_heads
        or any(one.dtype != torch.float32 or not one.is_contiguous() for one in floats)
        or not layers.shapes <= {(num_heads * head_dim, width, residual.shape[1])}
        or layers.angle_shapes != {(2, head_dim // 2)}
    ):
        raise ValueError(
            f"chained_layers: what does not fit: qkv {tuple(qkv.shape)}, residual {tuple(residual.shape)}, "
            f"{len(positions)} positions, {len(slots)} slots, keys {tuple(cache.keys.shape)}"
        )
    if cache.keys.dtype not in _RUN:
        raise ValueError(f"chained_layers: cannot use a cache of {cache.keys.dtype}")


def _numbers(layer: Layer, cache: LayerCache) -> LayerNumbers:
    norms, scales = layer.norms, cache.scales
    return LayerNumbers(
        0 if layer.chain is None else layer.chain.table.data_ptr(),
        0 if layer.chain is None else len(layer.chain.links),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        0 if scales is None else scales[0].data_ptr(),
        0 if scales is None else scales[1].data_ptr(),
        layer.angles.data_ptr(),
        0 if norms is None else norms.query.data_ptr(),
        0 if norms is None else norms.key.data_ptr(),
        layer.window or NO_WINDOW,
    )
