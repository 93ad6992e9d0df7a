"""Computes mixtures of experts: a router chooses a few MLPs for each token."""

import torch
from torch import Tensor

from kernels.expert_linear import ExpertWeights, expert_linear
from worker.engine.models.layers.linear import Projection
from worker.engine.models.layers.mlp import Mlp


class ExpertRouter:
    """Chooses each token's experts: the most likely ones, with a weight for each.

    Source: Shazeer et al., arXiv:1701.06538, with the softmax before the choice.
    """

    __slots__ = ("_is_normalised", "_logits", "num_chosen")

    def __init__(self, logits: Projection, *, num_chosen: int, is_normalised: bool) -> None:
        self._logits = logits
        self.num_chosen = num_chosen
        self._is_normalised = is_normalised  # scale each token's weights to a sum of one

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return float32 weights and the numbers of the experts, both [num_tokens, num_chosen]."""
        weights, chosen = self._logits(x).float().softmax(dim=-1).topk(self.num_chosen, dim=-1)
        if self._is_normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, chosen


class MixtureOfExperts:
    """Weighted sum of each token's experts, on a CPU.

    Only chosen experts run, each once over all its tokens. A token's experts are added in the order of their
    numbers.
    """

    __slots__ = ("_experts", "_router")

    def __init__(self, router: ExpertRouter, experts: list[Mlp]) -> None:
        self._router = router
        self._experts = experts

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for `x` [num_tokens, hidden]."""
        weights, chosen = self._router(x)
        weights = weights.to(x.dtype)
        # Choices sorted by expert: one run of `order` for each expert that was chosen.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self._experts)).tolist()
        out = torch.zeros_like(x)
        for expert, choices in zip(self._experts, torch.split(order, counts), strict=True):
            if len(choices):
                tokens = choices // self._router.num_chosen
                share = weights.flatten().index_select(0, choices).unsqueeze(1)
                out.index_add_(0, tokens, expert(x.index_select(0, tokens)) * share)
        return out


class ExpertsOnGpu:
    """Weighted sum of each token's experts, on a GPU.

    The host never sees the choices, so a CUDA graph can record it. A token's experts are added in float32,
    the most likely one first.
    """

    __slots__ = ("_down", "_gate_up", "_numbers", "_router")

    def __init__(self, router: ExpertRouter, gate_up: ExpertWeights, down: ExpertWeights) -> None:
        self._router = router
        self._gate_up = gate_up
        self._down = down
        self._numbers = torch.arange(gate_up.num_experts, device=gate_up.stacked.data.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for `x` [num_tokens, hidden]."""
        weights, chosen = self._router(x)
        sorted_experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(sorted_experts, self._numbers, right=True)
        tokens = order // self._router.num_chosen
        hidden = expert_linear(x.index_select(0, tokens), self._gate_up, ends)
        out = expert_linear(hidden, self._down, ends)
        # Back into the order of the choices.
        by_token = torch.empty_like(out).index_copy_(0, order, out).view(*chosen.shape, -1)
        return (by_token.float() * weights.unsqueeze(2)).sum(dim=1).to(x.dtype)
