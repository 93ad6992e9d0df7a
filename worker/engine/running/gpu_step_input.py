"""Uploads a Step to a GPU: one copy of all its numbers, split into tensors there."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.device import chip_name
from kernels.kv_write import GpuLayerCache
from kernels.paged_attention import GpuAttentionPlan, choose_tiling
from kernels.paged_attention.gpu import plan_attention
from worker.engine.models.registry import Architecture
from worker.engine.models.step_input import StepInput
from worker.engine.running.device_tables import DeviceTables
from worker.engine.running.input_builder import PackedStep


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Input tensors of a forward, all int32 and on the device."""

    token_ids: Tensor  # [num_tokens]
    positions: Tensor  # [num_tokens]
    slots: Tensor  # [num_tokens], negative for padding
    query_starts: Tensor  # [num_sequences + 1]
    context_lens: Tensor  # [num_sequences]
    block_tables: Tensor  # [num_sequences, max_blocks]
    output_rows: Tensor  # [num_outputs], empty if all rows are outputs
    hidden: Tensor | None = None  # [num_tokens], places that rows do not read; None: there are no trees


class AttentionPlanner:
    """Plans the attention of Steps for one model and its KV cache."""

    def __init__(
        self, architecture: Architecture, cache: GpuLayerCache, dtype: torch.dtype, max_model_len: int
    ) -> None:
        self._cache = cache
        self._num_heads = architecture.num_heads
        self._windows: Collection[int | None] = set(architecture.windows)
        self._tilings = {
            has_prompts: choose_tiling(
                group=architecture.num_heads // architecture.num_kv_heads,
                head_dim=architecture.head_dim,
                dtype=dtype,
                kv_format=cache.kv_format,
                max_model_len=max_model_len,
                has_prompts=has_prompts,
                chip=chip_name(cache.blocks.device),
            )
            for has_prompts in (False, True)
        }

    def plan(self, tensors: StepTensors, *, max_query_len: int, max_context_len: int) -> GpuAttentionPlan:
        """Return the plan of a Step whose lengths are within these bounds."""
        return plan_attention(
            tensors.query_starts,
            tensors.context_lens,
            tensors.block_tables,
            self._cache,
            self._tilings[max_query_len > 1],
            num_heads=self._num_heads,
            max_query_len=max_query_len,
            max_context_len=max_context_len,
            windows=self._windows,
            hidden=tensors.hidden,
        )


class GpuPlacement:
    """Makes StepInputs from PackedSteps on a GPU."""

    def __init__(self, planner: AttentionPlanner, tables: DeviceTables, device: torch.device) -> None:
        self._planner = planner
        self._tables = tables
        self._device = device

    def place(self, step: PackedStep, before: Tensor | None) -> StepInput:
        """Return the tensors of a Step, without waiting for the device.

        `before` [num_sampled] holds the tokens that the previous Step chose, if they are still there.
        """
        tensors, longest = upload(step, self._tables, self._device, before)
        return StepInput(
            token_ids=tensors.token_ids,
            positions=tensors.positions,
            slots=tensors.slots,
            attention=self._planner.plan(
                tensors, max_query_len=max(step.num_tokens), max_context_len=longest
            ),
            output_rows=None if step.output_rows is None else tensors.output_rows,
        )


def upload(
    step: PackedStep, tables: DeviceTables, device: torch.device, before: Tensor | None = None
) -> tuple[StepTensors, int]:
    """Return a Step's tensors on the device, with pending tokens from `before`, and its longest context."""
    ends = np.cumsum(step.num_tokens)
    context_lens = step.places[ends - 1] + 1
    longest = int(context_lens.max())
    changes = tables.changes(step)
    pending = np.array(step.pending, dtype=np.int64).reshape(-1, 2)
    arrays: tuple[np.ndarray, ...] = (
        step.token_ids,
        step.positions,
        step.slots,
        np.concatenate(([0], ends)),
        context_lens,
        np.array(step.output_rows or (), dtype=np.int64),
        step.rows,
        changes.places,
        changes.block_ids,
        pending[:, 0],
        pending[:, 1],
        np.zeros(0, dtype=np.int64) if step.hidden is None else step.hidden,
    )
    # Triton compiles a kernel again for a pointer that is not a multiple of 16 bytes.
    *starts, total = itertools.accumulate((-(-len(array) // 4) * 4 for array in arrays), initial=0)
    packed = np.zeros(total, dtype=np.int32)
    for start, array in zip(starts, arrays, strict=True):
        packed[start : start + len(array)] = array
    numbers = torch.from_numpy(packed)
    if device.type == "cuda":
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    parts = [numbers[start : start + len(array)] for start, array in zip(starts, arrays, strict=True)]
    (
        token_ids,
        positions,
        slots,
        query_starts,
        lens,
        output_rows,
        rows,
        places,
        block_ids,
        at,
        taken,
        hidden,
    ) = parts
    tables.write(changes, places, block_ids)
    if before is not None and step.pending:
        # A Sequence whose logits were not finite has none; it ends before the host looks at this row.
        token_ids[at.long()] = before[taken.long()].clamp(min=0).to(torch.int32)
    block_tables = tables.read(rows, -(-longest // tables.block_size))
    unread = None if step.hidden is None else hidden
    tensors = StepTensors(token_ids, positions, slots, query_starts, lens, block_tables, output_rows, unread)
    return tensors, longest
