"""Products of tokens with the weights of their experts, all experts in one launch."""

from kernels.expert_linear.op import expert_linear
from kernels.expert_linear.weight import ExpertWeights, pack_expert_weights

__all__ = ["ExpertWeights", "expert_linear", "pack_expert_weights"]
