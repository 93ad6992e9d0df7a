"""Times the rotation and cache write; no single operator of torch does the same."""

from pathlib import Path
from typing import get_args

import torch

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.kv_write import GpuLayerCache, KVFormat, LayerCache, reference, rotary_kv_write
from kernels.testing import assert_matches

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16


def main() -> None:
    """Check, then time, a decode Step and a prefill of Llama 3 8B's heads in each KV format."""
    require_gpu()
    table = ResultTable("rotary_kv_write", [])
    for num_tokens in (1, 64, 8192):
        width = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
        qkv = torch.randn(num_tokens, width, device="cuda", dtype=torch.bfloat16)
        turns = torch.rand(num_tokens, HEAD_DIM // 2, device="cuda") * 100
        angles = torch.stack((turns.cos(), turns.sin()), dim=1)
        rows = torch.arange(num_tokens, device="cuda", dtype=torch.int32)
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        shape = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        truth = LayerCache.allocate(*shape, torch.float32)
        every = torch.arange(num_tokens)
        expected, _ = reference.rotary_kv_write(qkv.cpu(), angles.cpu(), every, every, truth)
        for kv_format in get_args(KVFormat):
            cache = GpuLayerCache.allocate(
                *shape, dtype=torch.bfloat16, kv_format=kv_format, device=qkv.device
            )

            def ours(cache: GpuLayerCache = cache) -> torch.Tensor:
                return rotary_kv_write(qkv, angles, rows, rows, cache)  # noqa: B023  (called within the turn)

            assert_matches(ours().cpu(), expected.transpose(0, 1).flatten(1, 2))
            kv_bytes = 2 * NUM_KV_HEADS * cache.blocks.element_size()
            written = num_tokens * HEAD_DIM * (2 * NUM_HEADS + kv_bytes)
            moved = qkv.numel() * 2 + angles.numel() * 4 + written
            table.row(f"{num_tokens} tokens, {kv_format} KV", time_call(ours), LeastWork(moved), {})
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
