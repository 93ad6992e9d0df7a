"""Attention over the paged KV cache; plan it once per Step and run it once per layer."""

from kernels.paged_attention.op import paged_attention
from kernels.paged_attention.plan import AttentionPlan, plan_attention
from kernels.paged_attention.tiling import GpuAttentionPlan, Tiling, choose_tiling
from kernels.paged_attention.tree import MAX_TREE_ROWS, hidden_places

__all__ = [
    "MAX_TREE_ROWS",
    "AttentionPlan",
    "GpuAttentionPlan",
    "Tiling",
    "choose_tiling",
    "hidden_places",
    "paged_attention",
    "plan_attention",
]
