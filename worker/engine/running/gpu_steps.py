"""Runs empty Steps on a GPU to measure memory and compile kernels, and padded Steps for graphs."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from kernels.crossover import token_counts
from kernels.device import chip_name
from kernels.kv_write import PagedCache
from kernels.paged_attention.gpu import sequence_lanes
from kernels.sampling import sample
from worker.engine.models.registry import LoadedModel
from worker.engine.models.step_input import StepInput
from worker.engine.running.device_tables import DeviceTables
from worker.engine.running.gpu_step_input import AttentionPlanner, StepTensors, upload
from worker.engine.running.input_builder import PackedStep


def run_largest_step(
    model: LoadedModel,
    kv_cache: Sequence[PagedCache],
    planner: AttentionPlanner,
    device: torch.device,
    *,
    max_num_sequences: int,
    max_tokens: int,
    max_model_len: int,
) -> Tensor:
    """Run a Step with the most rows and Sequences allowed; return probabilities of one row per Sequence.

    It writes nothing to `kv_cache` and reads its Block 0 for all Sequences.
    """
    num_sequences = min(max_num_sequences, max_tokens)
    num_tokens = [
        min(len(part), max_model_len) for part in np.array_split(np.arange(max_tokens), num_sequences)
    ]
    hidden = _run_empty(model, kv_cache, planner, device, num_tokens, max_context_len=max_model_len)
    return model.logits(hidden[:num_sequences]).float().softmax(dim=-1)


def run_each_kind(
    model: LoadedModel,
    kv_cache: Sequence[PagedCache],
    planner: AttentionPlanner,
    device: torch.device,
    *,
    max_num_sequences: int,
    max_tokens: int,
    max_model_len: int,
    num_logits: int,
    has_trees: bool,
) -> None:
    """Run Steps until every kernel that a Step may launch is compiled; writes nothing to `kv_cache`.

    The kernel of a product depends on the number of tokens; `num_logits` are the most rows of logits. The
    kernel of attention depends on the number of Sequences, on whether one has several tokens, on whether
    these are a tree, and on whether a context is cut into splits.
    """
    for num_tokens in token_counts(chip_name(device), max_tokens):
        even = [len(part) for part in np.array_split(np.arange(num_tokens), -(-num_tokens // max_model_len))]
        hidden = _run_empty(model, kv_cache, planner, device, even, max_context_len=max_model_len)
        model.logits(hidden[:num_logits])
    logits = model.logits(_run_empty(model, kv_cache, planner, device, [1], max_context_len=2))
    options = torch.zeros(5, 2, dtype=torch.float64, device=device)[:, :1]
    for one in (logits, logits.float()):  # logit rules return float32
        sample(one, *options)
    kinds = [(1, False), (2, False), *([(2, True)] if has_trees else [])]
    num_sequences = 1
    while num_sequences <= max_num_sequences:
        for kind, max_context_len in itertools.product(kinds, (2, max_model_len)):
            max_query_len, is_tree = kind
            _run_empty(
                model,
                kv_cache,
                planner,
                device,
                [1] * num_sequences,
                max_query_len=max_query_len,
                max_context_len=max_context_len,
                is_tree=is_tree,
            )
        num_sequences = sequence_lanes(num_sequences) + 1


def _run_empty(
    model: LoadedModel,
    kv_cache: Sequence[PagedCache],
    planner: AttentionPlanner,
    device: torch.device,
    num_tokens: list[int],
    *,
    max_query_len: int | None = None,
    max_context_len: int,
    is_tree: bool = False,
) -> Tensor:
    """Return the hidden states of Sequences with these numbers of tokens and no Slots."""
    counts = torch.tensor(num_tokens, dtype=torch.int32)
    total = sum(num_tokens)
    tensors = StepTensors(
        token_ids=torch.zeros(total, dtype=torch.int32, device=device),
        positions=torch.cat([torch.arange(count, dtype=torch.int32) for count in num_tokens]).to(device),
        slots=torch.full((total,), -1, dtype=torch.int32, device=device),
        query_starts=F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0)).to(device),
        context_lens=counts.to(device),
        block_tables=torch.zeros(len(num_tokens), max(num_tokens), dtype=torch.int32, device=device),
        output_rows=torch.zeros(0, dtype=torch.int32, device=device),
        hidden=torch.zeros(total, dtype=torch.int32, device=device) if is_tree else None,
    )
    plan = planner.plan(
        tensors, max_query_len=max_query_len or max(num_tokens), max_context_len=max_context_len
    )
    step = StepInput(tensors.token_ids, tensors.positions, tensors.slots, plan, None)
    return model.forward(step, kv_cache)


class StepSize(NamedTuple):
    """How many Sequences and tokens a padded Step has room for; as many of both: one token of each."""

    num_sequences: int
    num_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether no Sequence may have several tokens."""
        return self.num_sequences == self.num_tokens


class PaddedStep:
    """A Step in tensors at fixed addresses, padded to one of several sizes. All its rows get logits.

    Padding rows have no Slot and belong to Sequences without rows; their results are not used.
    """

    def __init__(
        self,
        model: LoadedModel,
        kv_cache: Sequence[PagedCache],
        planner: AttentionPlanner,
        device: torch.device,
        *,
        largest: StepSize,
        max_model_len: int,
        tables: DeviceTables,
        has_trees: bool,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._planner = planner
        self._device = device
        self._tables = tables
        self._max_model_len = max_model_len
        self.has_trees = has_trees  # without, Steps of trees do not fit

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        num_sequences, num_tokens = largest
        self._tensors = StepTensors(
            token_ids=zeros(num_tokens),
            positions=zeros(num_tokens),
            slots=zeros(num_tokens) - 1,
            query_starts=zeros(num_sequences + 1),
            context_lens=zeros(num_sequences),
            block_tables=zeros(num_sequences, -(-max_model_len // tables.block_size)),
            output_rows=zeros(0),
            hidden=zeros(num_tokens) if has_trees else None,
        )

    def fill(self, step: PackedStep, size: StepSize, before: Tensor | None) -> None:
        """Copy a Step that is no larger than `size` to where `forward(size)` reads it.

        `before` is as in `GpuPlacement.place`.
        """
        new, _ = upload(step, self._tables, self._device, before)
        own, count, num_tokens = self._tensors, len(step.num_tokens), len(step.token_ids)
        own.token_ids[:num_tokens] = new.token_ids
        own.positions[:num_tokens] = new.positions
        own.slots[:num_tokens] = new.slots
        own.slots[num_tokens : size.num_tokens] = -1
        own.query_starts[: count + 1] = new.query_starts
        own.query_starts[count + 1 : size.num_sequences + 1] = num_tokens
        own.context_lens[:count] = new.context_lens
        own.block_tables[:count, : new.block_tables.shape[1]] = new.block_tables
        if own.hidden is not None and not size.is_decode:
            own.hidden[:num_tokens] = 0 if new.hidden is None else new.hidden

    def forward(self, size: StepSize) -> tuple[Tensor, Tensor]:
        """Return the final hidden states and the logits of the first `size.num_tokens` rows."""
        own, (num_sequences, num_tokens) = self._tensors, size
        tensors = StepTensors(
            token_ids=own.token_ids[:num_tokens],
            positions=own.positions[:num_tokens],
            slots=own.slots[:num_tokens],
            query_starts=own.query_starts[: num_sequences + 1],
            context_lens=own.context_lens[:num_sequences],
            block_tables=own.block_tables[:num_sequences],
            output_rows=own.output_rows,
            hidden=None if own.hidden is None or size.is_decode else own.hidden[:num_tokens],
        )
        plan = self._planner.plan(
            tensors, max_query_len=1 if size.is_decode else num_tokens, max_context_len=self._max_model_len
        )
        step = StepInput(tensors.token_ids, tensors.positions, tensors.slots, plan, None)
        hidden = self._model.forward(step, self._kv_cache)
        return hidden, self._model.logits(hidden)
