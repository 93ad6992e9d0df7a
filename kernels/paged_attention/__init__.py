"""Attention over the paged KV cache; plan it once per Step and run it once per layer."""

from kernels.paged_attention.op import paged_attention
from kernels.paged_attention.plan import AttentionPlan, plan_attention
from kernels.paged_attention.tiling import GpuAttentionPlan, Tiling, choose_tiling

__all__ = [
    "AttentionPlan",
    "GpuAttentionPlan",
    "Tiling",
    "choose_tiling",
    "paged_attention",
    "plan_attention",
]
