"""An MLP of which each token uses a few parts, chosen by a router."""

import torch
from torch import Tensor

from worker.engine.layers.linear import Projection
from worker.engine.layers.mlp import Mlp


class MixtureOfExperts:
    """The weighted sum of each token's most likely experts.

    Only experts that some token chose run, each once, over its tokens together; a token adds them up in the
    order of their numbers. Source: Shazeer et al., arXiv:1701.06538, with the softmax before the choice.
    """

    __slots__ = ("_experts", "_is_normalised", "_num_chosen", "_router")

    def __init__(
        self, router: Projection, experts: list[Mlp], *, num_chosen: int, is_normalised: bool
    ) -> None:
        self._router = router
        self._experts = experts
        self._num_chosen = num_chosen
        self._is_normalised = is_normalised  # whether a token's weights are made to sum to one

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for `x` [num_tokens, hidden]."""
        weights, chosen = self._router(x).float().softmax(dim=-1).topk(self._num_chosen, dim=-1)
        if self._is_normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        # Choices sorted by expert: one run of `order` for each expert that was chosen.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self._experts)).tolist()
        out = torch.zeros_like(x)
        for expert, choices in zip(self._experts, torch.split(order, counts), strict=True):
            if len(choices):
                tokens = choices // self._num_chosen
                share = weights.flatten().index_select(0, choices).unsqueeze(1)
                out.index_add_(0, tokens, expert(x.index_select(0, tokens)) * share)
        return out
