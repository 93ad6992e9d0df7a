"""Times the quantization of tokens beside the same formula in torch's own operators."""

from functools import partial
from pathlib import Path

import torch

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.quantize_tokens import quantize_tokens, reference
from kernels.quantize_tokens.formats import LARGEST

WIDTHS = (4096, 14336)  # of Llama 3 8B's layers


def main() -> None:
    """Check, then time, decode Steps and a prefill in both formats."""
    require_gpu()
    table = ResultTable("quantize_tokens", ["torch"])
    for dtype in LARGEST:
        for width in WIDTHS:
            for num_tokens in (1, 64, 8192):
                x = torch.randn(num_tokens, width, device="cuda", dtype=torch.bfloat16)
                levels, scales = quantize_tokens(x, dtype)
                expected, expected_scales = reference.quantize_tokens(x, dtype)
                torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
                # Either of two equally near levels is correct; one in sixteen is the widest step.
                torch.testing.assert_close(levels.float(), expected.float(), rtol=1 / 8, atol=1)
                table.row(
                    f"{str(dtype).removeprefix('torch.')}: {num_tokens} x {width} bf16",
                    time_call(partial(quantize_tokens, x, dtype)),
                    LeastWork(3 * x.numel() + 4 * num_tokens),
                    {"torch": time_call(partial(reference.quantize_tokens, x, dtype))},
                )
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
