"""Times sampling beside a sort by torch."""

from pathlib import Path

import torch
from torch import Tensor

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.sampling import reference, sample
from kernels.sampling.cases import OFF

VOCAB_SIZE = 128256


def main() -> None:
    """Check, then time, batches over Llama 3's vocabulary with each kind of option."""
    require_gpu()
    table = ResultTable("sampling", ["torch sort"])
    for num_rows in (1, 64, 256):
        logits = torch.randn(num_rows, VOCAB_SIZE, device="cuda") * 3
        uniform = torch.rand(num_rows, device="cuda", dtype=torch.float64)
        for name, options in {
            "plain": (1.0, OFF, 1.0, 0.0),
            "top-k 50": (1.0, 50, 1.0, 0.0),
            "top-p 0.9": (1.0, OFF, 0.9, 0.0),
        }.items():
            columns = (
                torch.tensor(options, device="cuda", dtype=torch.float64).repeat(num_rows, 1).T.contiguous()
            )
            tokens = _sample(logits, columns, uniform)
            temperature, top_k, top_p, min_p = options
            likely = reference.distribution(
                logits[0].cpu(), temperature=temperature, top_k=int(top_k), top_p=top_p, min_p=min_p
            )
            if likely[tokens[0].cpu()] <= 0:
                raise SystemExit(f"sampling: {name} drew token {tokens[0]}, which it must not")

            def ours(columns: Tensor = columns, logits: Tensor = logits, uniform: Tensor = uniform) -> Tensor:
                return _sample(logits, columns, uniform)

            def theirs(logits: Tensor = logits, top_p: float = top_p) -> Tensor:
                ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
                ordered[ordered.cumsum(dim=-1) - ordered > top_p] = 0
                return order.gather(1, ordered.multinomial(1))

            table.row(
                f"{num_rows} x {VOCAB_SIZE} f32, {name}",
                time_call(ours),
                LeastWork(4 * logits.numel()),
                {"torch sort": time_call(theirs)},
            )
    table.write(Path(__file__).parent)


def _sample(logits: Tensor, columns: Tensor, uniform: Tensor) -> Tensor:
    return sample(logits, columns[0], columns[1], columns[2], columns[3], uniform)


if __name__ == "__main__":
    main()
