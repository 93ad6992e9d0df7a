"""Keeps the BlockTables of running Sequences on a GPU, so that each Step uploads only the changes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.engine.running.input_builder import PackedStep


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Entries of a Step's BlockTables that are not on the device yet."""

    places: np.ndarray  # [num_changes] int64, in the flattened matrix
    block_ids: np.ndarray  # [num_changes] int64
    sent: dict[int, tuple[list[int], int]]  # each row's list and length once the changes are written


class DeviceTables:
    """BlockTables on the device, one row per Sequence that may run, as in the InputBuilder's matrix."""

    def __init__(
        self, *, max_num_sequences: int, max_blocks_per_sequence: int, block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self._tables = torch.zeros(
            max_num_sequences, max_blocks_per_sequence, dtype=torch.int32, device=device
        )
        # The list that each row mirrors, and how many entries of it.
        self._sent: list[tuple[list[int], int]] = [([], 0)] * max_num_sequences

    def changes(self, step: PackedStep) -> TableChanges:
        """Return the changes that `write` needs before the Step's tables can be read."""
        places: list[np.ndarray] = []
        block_ids: list[int] = []
        sent: dict[int, tuple[list[int], int]] = {}
        width = self._tables.shape[1]
        for row, table in zip(step.rows.tolist(), step.tables, strict=True):
            held, count = self._sent[row]
            if held is not table:
                count = 0
            if count < len(table):
                places.append(np.arange(row * width + count, row * width + len(table)))
                block_ids += table[count:]
                sent[row] = (table, len(table))
        none = np.zeros(0, dtype=np.int64)
        return TableChanges(np.concatenate([none, *places]), np.array(block_ids, dtype=np.int64), sent)

    def write(self, changes: TableChanges, places: Tensor, block_ids: Tensor) -> None:
        """Write changes, given as tensors on the device, into the tables."""
        if len(places):
            self._tables.view(-1)[places.long()] = block_ids
        # Recorded only now: if a Step runs out of memory before this, they are sent again.
        for row, held in changes.sent.items():
            self._sent[row] = held

    def read(self, rows: Tensor, num_blocks: int) -> Tensor:
        """Return the first `num_blocks` Blocks of these rows, int32 [num_rows, num_blocks]."""
        return self._tables[:, :num_blocks].index_select(0, rows)
