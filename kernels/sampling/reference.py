"""Computes the distribution of sampling in float64 by its rules."""

import torch
from torch import Tensor


def distribution(logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Return the probability of each token of one row, [vocab_size] float64; ties go to the lower token."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.float().argmax(), len(logits)).double()
    probabilities = (logits.double() / temperature).softmax(dim=0)
    ordered, tokens = probabilities.sort(descending=True, stable=True)
    ordered[top_k:] = 0
    ordered /= ordered.sum()
    ordered[ordered.cumsum(dim=0) - ordered >= top_p] = 0
    ordered[ordered < min_p * ordered[0]] = 0
    return torch.zeros_like(ordered).scatter(0, tokens, ordered / ordered.sum())
