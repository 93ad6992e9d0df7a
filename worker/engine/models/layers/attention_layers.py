"""Runs all layers from the first one's query, key and value to the last one's attention."""

from collections.abc import Sequence
from typing import Protocol, cast

from torch import Tensor

from kernels.chained_layers import Layer, Layers, run_layers
from kernels.kv_write import LayerCache, PagedCache
from kernels.paged_attention import AttentionPlan
from worker.engine.models.layers.attention import Attention
from worker.engine.models.layers.layer_end import ChainedEnd, LayerEnd
from worker.engine.models.step_input import StepInput


class AttentionLayers(Protocol):
    """Interface of all layers up to the last attention, layer by layer or in one piece."""

    is_one_region: bool  # whether they are one parallel region, which holds no lock of Python

    def __call__(self, x: Tensor, residual: Tensor, caches: Sequence[PagedCache], step: StepInput) -> Tensor:
        """Return the last attention's result, [num_tokens, num_heads * head_dim].

        `x` is the first layer's query, key and value. `residual` [num_tokens, hidden] float32 changes in
        place.
        """


class SeparateLayers:
    """Layers that run one after the other, in several parallel regions each."""

    is_one_region = False
    __slots__ = ("_angles", "_attentions", "_ends")

    def __init__(
        self, attentions: Sequence[Attention], angles: Sequence[Tensor], ends: Sequence[LayerEnd]
    ) -> None:
        self._attentions = attentions
        self._angles = angles
        self._ends = ends

    def __call__(self, x: Tensor, residual: Tensor, caches: Sequence[PagedCache], step: StepInput) -> Tensor:
        """Return as `AttentionLayers` says."""
        *first, last = zip(self._attentions, self._angles, caches, strict=True)
        for (attention, angles, cache), end in zip(first, self._ends, strict=True):
            x = end(attention(x, angles, cache, step), residual)
        attention, angles, cache = last
        return attention(x, angles, cache, step)


class ChainedLayers:
    """Layers whose products run in chains, in one parallel region."""

    is_one_region = True
    __slots__ = ("_layers",)

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def __call__(self, x: Tensor, residual: Tensor, caches: Sequence[PagedCache], step: StepInput) -> Tensor:
        """Return as `AttentionLayers` says."""
        plan = step.attention
        if not isinstance(plan, AttentionPlan):
            raise TypeError("layers of chained products run on a CPU")
        on_cpu = cast("Sequence[LayerCache]", caches)
        return run_layers(self._layers, x, residual, step.positions, step.slots, on_cpu, plan)


def attention_layers(
    attentions: Sequence[Attention], angles: Sequence[Tensor], ends: Sequence[LayerEnd]
) -> AttentionLayers:
    """Return the layers; each attention has its angles, and each but the last the end of its layer."""
    chains = [end.chain for end in ends if isinstance(end, ChainedEnd)]
    if not chains or len(chains) < len(ends):
        return SeparateLayers(attentions, angles, ends)
    layers = [
        Layer(turn, attention.norms, attention.window, chain)
        for attention, turn, chain in zip(attentions, angles, [*chains, None], strict=True)
    ]
    first = attentions[0]
    return ChainedLayers(Layers(layers, scale=first.scale, soft_cap=first.soft_cap))
