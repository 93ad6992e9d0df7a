"""Speed of the GELU gate beside torch's own operators."""

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.benchmarking import report, require_gpu, time_call
from kernels.gelu_mul import gelu_mul, reference
from kernels.testing import assert_matches


def main() -> None:
    """Check, then time, a decode Step and a prefill of Llama 3 8B's width."""
    require_gpu()
    for num_tokens in (1, 64, 8192):
        gate_up = torch.randn(num_tokens, 2 * 14336, device="cuda", dtype=torch.bfloat16)
        assert_matches(gelu_mul(gate_up), reference.gelu_mul(gate_up))

        def theirs(gate_up: Tensor = gate_up) -> Tensor:
            gate, up = gate_up.chunk(2, dim=-1)
            return F.gelu(gate, approximate="tanh") * up

        def ours(gate_up: Tensor = gate_up) -> Tensor:
            return gelu_mul(gate_up)

        moved = gate_up.numel() * 3
        report(
            "gelu_mul",
            f"{num_tokens} x 14336 bf16",
            time_call(ours, moved),
            {"torch": time_call(theirs, moved)},
        )


if __name__ == "__main__":
    main()
