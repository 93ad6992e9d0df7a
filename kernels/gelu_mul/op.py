"""GELU gate: checks arguments and chooses the implementation (plain torch on a CPU)."""

import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    The tanh form of GELU. Raises ValueError when its last axis is odd. Source: Hendrycks and Gimpel,
    arXiv:1606.08415.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gelu_mul: gate_up is {tuple(gate_up.shape)}")
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
