"""Times the gated activations beside torch's own operators."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.gate_mul import gelu_mul, reference, silu_mul
from kernels.testing import assert_matches

WIDTH = 14336  # of Llama 3 8B
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "silu_mul": (silu_mul, reference.silu_mul, F.silu),
    "gelu_mul": (gelu_mul, reference.gelu_mul, partial(F.gelu, approximate="tanh")),
}


def main() -> None:
    """Check, then time, a decode Step and a prefill of Llama 3 8B's width."""
    require_gpu()
    table = ResultTable("gate_mul", ["torch"])
    for name, (ours, truth, activation) in ACTIVATIONS.items():
        for num_tokens in (1, 64, 8192):
            gate_up = torch.randn(num_tokens, 2 * WIDTH, device="cuda", dtype=torch.bfloat16)
            assert_matches(ours(gate_up), truth(gate_up))
            gate, up = gate_up.chunk(2, dim=-1)
            theirs = time_call(lambda: activation(gate) * up)  # noqa: B023  (called at once)
            work = LeastWork(gate_up.numel() * 3)
            table.row(
                f"{name} {num_tokens} x {WIDTH} bf16",
                time_call(partial(ours, gate_up)),
                work,
                {"torch": theirs},
            )
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
