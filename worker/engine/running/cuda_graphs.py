"""Records Steps of several small sizes as CUDA graphs, so that the host launches once per Step."""

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from worker.engine.running.gpu_steps import PaddedStep, StepSize
from worker.engine.running.input_builder import PackedStep
from worker.engine.speculation.proposer import MAX_GUESSES

logger = logging.getLogger(__name__)

MOST_WITH_GUESSES = 16  # Sequences of a Step with guesses that is a graph


class StepGraphs:
    """Replays Steps as CUDA graphs, which the constructor records."""

    def __init__(self, padded: PaddedStep, sizes: Sequence[StepSize]) -> None:
        self._padded = padded
        self._graphs: dict[StepSize, torch.cuda.CUDAGraph] = {}
        self.num_rows = 0  # rows of the graph replayed last
        began, pool = time.monotonic(), None
        # Largest first, so that the others fit in its memory.
        self._sizes = sorted(sizes, key=lambda size: (size.num_tokens, size.num_sequences))
        # Shared by all graphs: outputs of each graph would take gigabytes in all.
        self._hidden, self._logits = map(torch.empty_like, padded.forward(self._sizes[-1]))
        for size in reversed(self._sizes):
            padded.forward(size)  # compiles kernels, which cannot happen while recording
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._keep(*padded.forward(size))
            pool = pool or graph.pool()
            self._graphs[size] = graph
        logger.info("recorded %d graphs of Steps in %.1f s", len(self._sizes), time.monotonic() - began)

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the final hidden states and the logits of each output row; None if no graph fits.

        They are [num_outputs, hidden_size] and [num_outputs, vocab_size], valid until the next call.
        `before` holds the tokens that the previous Step chose, if they are still on the device.
        """
        size = size_for(step, self._sizes)
        if size is None or (step.hidden is not None and not self._padded.has_trees):
            return None
        self._padded.fill(step, size, before)
        self._graphs[size].replay()
        self.num_rows = size.num_tokens
        return output_rows_of(step, self._hidden), output_rows_of(step, self._logits)

    def _keep(self, hidden: Tensor, logits: Tensor) -> None:
        self._hidden[: len(hidden)].copy_(hidden)
        self._logits[: len(logits)].copy_(logits)


def size_for(step: PackedStep, sizes: Sequence[StepSize]) -> StepSize | None:
    """Return the first of these sizes that a Step fits in; None if none does, or if a readout takes rows."""
    num_sequences, num_tokens = len(step.num_tokens), len(step.token_ids)
    if not step.sampled or step.spans:
        return None
    is_decode = num_sequences == num_tokens
    fitting = (
        size
        for size in sizes
        if size.is_decode == is_decode
        and size.num_sequences >= num_sequences
        and size.num_tokens >= num_tokens
    )
    return next(fitting, None)


def output_rows_of(step: PackedStep, rows: Tensor) -> Tensor:
    """Return those of a Step's rows from which a token is chosen."""
    return rows[: len(step.token_ids)] if step.output_rows is None else rows[step.output_rows]


def graph_sizes(max_num_sequences: int, max_tokens: int, *, speculates: bool) -> list[StepSize]:
    """Return the sizes that get a graph, of at most so many Sequences and tokens.

    Decode Steps: powers of 2 up to 16, then multiples of 16, and the maximum. If it `speculates`, also Steps
    of few Sequences that have 2, 4, 8 or all possible guessed tokens and known ones each, on average.
    """
    counts = (1, 2, 4, 8, *range(16, max_num_sequences, 16))
    counts = (*(count for count in counts if count < max_num_sequences), max_num_sequences)
    sizes = [StepSize(count, count) for count in counts]
    if speculates:
        few = [count for count in counts if count <= MOST_WITH_GUESSES]
        larger = [StepSize(count, count * each) for count in few for each in (2, 4, 8, 1 + MAX_GUESSES)]
        sizes += [size for size in larger if size.num_tokens <= max_tokens]
    return sizes
