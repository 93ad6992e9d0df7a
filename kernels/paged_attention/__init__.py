"""Attention over the paged KV cache: plan once a Step, run once a layer."""

from kernels.paged_attention.op import paged_attention
from kernels.paged_attention.plan import AttentionPlan, plan_attention

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]
