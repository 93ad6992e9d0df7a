"""Times the addition and normalisation beside torch's own operators."""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.rms_norm import add_rms_norm, reference
from kernels.testing import assert_matches


def main() -> None:
    """Check, then time, a decode Step and a prefill of Llama 3 8B's width."""
    require_gpu()
    table = ResultTable("rms_norm", ["torch"])
    for num_tokens in (1, 64, 8192):
        x = torch.randn(num_tokens, 4096, device="cuda", dtype=torch.bfloat16)
        residual = torch.randn(num_tokens, 4096, device="cuda")
        weight = torch.rand(4096, device="cuda")
        expected, _ = reference.add_rms_norm(x, residual, weight, 1e-5)
        assert_matches(add_rms_norm(x, residual.clone(), weight, 1e-5), expected)

        def ours(x: Tensor = x, residual: Tensor = residual, weight: Tensor = weight) -> Tensor:
            return add_rms_norm(x, residual, weight, 1e-5)

        def theirs(x: Tensor = x, residual: Tensor = residual, weight: Tensor = weight) -> Tensor:
            residual += x
            return F.rms_norm(residual, (4096,), weight, 1e-5).to(x.dtype)

        work = LeastWork(x.numel() * (2 + 4 + 4 + 2))
        table.row(
            f"{num_tokens} x 4096 bf16, residual f32", time_call(ours), work, {"torch": time_call(theirs)}
        )
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
