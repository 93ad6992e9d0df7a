"""Records decode Steps of several sizes as CUDA graphs, so that the host launches once per Step."""

import logging
import time

import torch
from torch import Tensor

from worker.engine.running.gpu_steps import PaddedDecode
from worker.engine.running.input_builder import PackedStep

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """Replays decode Steps as CUDA graphs, which the constructor records."""

    def __init__(self, decode: PaddedDecode, max_num_sequences: int) -> None:
        self._decode = decode
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.num_rows = 0  # rows of the graph replayed last
        began, pool = time.monotonic(), None
        # Shared by all graphs: outputs of each graph would take gigabytes in all.
        self._hidden, self._logits = map(torch.empty_like, decode.forward(max_num_sequences))
        # Largest first, so that the others fit in its memory.
        for size in reversed(graph_sizes(max_num_sequences)):
            decode.forward(size)  # compiles kernels, which cannot happen while recording
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._keep(*decode.forward(size))
            pool = pool or graph.pool()
            self._graphs[size] = graph
        self._sizes = sorted(self._graphs)
        logger.info("recorded %d decode graphs in %.1f s", len(self._sizes), time.monotonic() - began)

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the final hidden states and the logits of each Sequence; None if no graph fits.

        They are [num_sequences, hidden_size] and [num_sequences, vocab_size], valid until the next call.
        `before` holds the tokens that the previous Step chose, if they are still on the device.
        """
        count = len(step.num_tokens)
        if not is_decode(step) or count > self._sizes[-1]:
            return None
        size = next(size for size in self._sizes if size >= count)
        self._decode.fill(step, size, before)
        self._graphs[size].replay()
        self.num_rows = size
        return self._hidden[:count], self._logits[:count]

    def _keep(self, hidden: Tensor, logits: Tensor) -> None:
        self._hidden[: len(hidden)].copy_(hidden)
        self._logits[: len(logits)].copy_(logits)


def is_decode(step: PackedStep) -> bool:
    """Return whether each Sequence runs one token and gets the next one."""
    return step.output_rows is None and len(step.sampled) == len(step.num_tokens) == len(step.token_ids)


def graph_sizes(max_num_sequences: int) -> list[int]:
    """Return the sizes that get a graph: powers of 2 up to 16, then multiples of 16, and the maximum."""
    sizes = (1, 2, 4, 8, *range(16, max_num_sequences, 16))
    return [size for size in sizes if size < max_num_sequences] + [max_num_sequences]
