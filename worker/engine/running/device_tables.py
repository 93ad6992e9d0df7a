"""The block tables of running Sequences where they stay on a GPU: a Step brings only what is new of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.engine.running.input_builder import PackedStep


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What of the tables of a Step's Sequences is not on the device yet."""

    places: np.ndarray  # [num_changes] int64, in the whole matrix
    block_ids: np.ndarray  # [num_changes] int64
    sent: dict[int, tuple[list[int], int]]  # what each row holds once they are written


class DeviceTables:
    """A row for each Sequence that may run, as in the InputBuilder's matrix."""

    def __init__(
        self, *, max_num_sequences: int, max_blocks_per_sequence: int, block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self._tables = torch.zeros(
            max_num_sequences, max_blocks_per_sequence, dtype=torch.int32, device=device
        )
        # The list each row mirrors, and how much of it.
        self._sent: list[tuple[list[int], int]] = [([], 0)] * max_num_sequences

    def changes(self, step: PackedStep) -> TableChanges:
        """Return what `write` must be given before the Step's tables can be read."""
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
        """Put changes, which have come to the device, into their places."""
        if len(places):
            self._tables.view(-1)[places.long()] = block_ids
        # Only now: a Step that ran out of memory before this sends them again.
        for row, held in changes.sent.items():
            self._sent[row] = held

    def read(self, rows: Tensor, num_blocks: int) -> Tensor:
        """Return the first Blocks of these rows, [num_rows, num_blocks] int32."""
        return self._tables[:, :num_blocks].index_select(0, rows)
