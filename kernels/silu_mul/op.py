"""SiLU gate: checks arguments and chooses the implementation (plain torch on a CPU)."""

import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    Raises ValueError when its last axis is odd.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"silu_mul: gate_up is {tuple(gate_up.shape)}")
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
