"""A Step brings to a GPU what is new of its block tables, and no more; what is read there is whole."""

import random

import numpy as np
import pytest
import torch

from tests.fixtures.scheduling import make_sequence
from worker.engine.running import gpu_step_input
from worker.engine.running.device_tables import DeviceTables, TableChanges
from worker.engine.running.gpu_step_input import upload
from worker.engine.running.input_builder import InputBuilder, PackedStep
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.sequence import Sequence

CPU = torch.device("cpu")


def decode_step(builder: InputBuilder, running: list[Sequence], start: int) -> PackedStep:
    entries = tuple(ScheduledSequence(one, start, 1, is_sampled=True) for one in running)
    return builder.build(StepPlan(entries), None)


def make_tables(num_rows: int, num_blocks: int, block_size: int) -> tuple[InputBuilder, DeviceTables]:
    sizes = {
        "max_num_sequences": num_rows,
        "max_blocks_per_sequence": num_blocks,
        "block_size": block_size,
    }
    return InputBuilder(**sizes), DeviceTables(**sizes, device=CPU)


def test_a_decode_step_uploads_nothing_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows, block_size, context = 256, 16, 100_000
    builder, tables = make_tables(num_rows, 8192, block_size)
    token_ids = [1] * (context + 40)
    running = []
    for row in range(num_rows):
        sequence = make_sequence(row, ())
        sequence.token_ids, sequence.row = token_ids, row
        sequence.block_table = [row * 7 + block for block in range(context // block_size)]
        running.append(sequence)
    sizes: list[int] = []
    from_numpy = torch.from_numpy

    def counted(array: np.ndarray) -> torch.Tensor:
        if array.dtype == np.int32:
            sizes.append(array.nbytes)
        return from_numpy(array)

    monkeypatch.setattr(gpu_step_input.torch, "from_numpy", counted)
    for start in range(context - 1, context + 39):
        for sequence in running:
            if start // block_size == len(sequence.block_table):
                sequence.block_table.append(start)
        tensors, longest = upload(decode_step(builder, running, start), tables, CPU)
        assert longest == start + 1
        assert tensors.block_tables.tolist() == [sequence.block_table for sequence in running]
    assert len(sizes) == 40
    numbers = 4 * 6 * num_rows  # token, position, Slot, end, context and row of each
    assert max(sizes[1:]) < numbers + 8 * num_rows + 100  # all get a Block at once
    assert sorted(sizes[1:])[len(sizes) // 2] < numbers + 100


def change_hands(sequences: list[Sequence], numbers: random.Random) -> None:
    """Take rows away, give them out again, and let tables grow."""
    for sequence in sequences:
        if sequence.row is not None and numbers.random() < 0.1:
            sequence.row, sequence.block_table = None, []
    free = sorted({*range(6)} - {sequence.row for sequence in sequences})
    for sequence in numbers.sample(sequences, 9):
        if sequence.row is None and free:
            sequence.row = free.pop(numbers.randrange(len(free)))
            sequence.block_table = [numbers.randrange(99)]
        if sequence.row is not None and len(sequence.block_table) < 12 and numbers.random() < 0.5:
            sequence.block_table.append(numbers.randrange(99))


def test_tables_are_whole_whatever_a_step_before_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows change hands, tables grow, Steps leave Sequences out, memory runs out before one is written."""
    numbers = random.Random(7)
    builder, tables = make_tables(6, 12, 4)
    write, fails = DeviceTables.write, False

    def may_fail(self: DeviceTables, changes: TableChanges, *tensors: torch.Tensor) -> None:
        if fails:
            raise torch.OutOfMemoryError("at the tables")
        write(self, changes, *tensors)

    monkeypatch.setattr(DeviceTables, "write", may_fail)
    sequences = [make_sequence(number, [1] * 48) for number in range(9)]
    num_read = 0
    for _ in range(600):
        change_hands(sequences, numbers)
        held = [sequence for sequence in sequences if sequence.row is not None]
        chosen = numbers.sample(held, numbers.randrange(1, len(held) + 1))
        entries = tuple(
            ScheduledSequence(one, 4 * len(one.block_table) - 1, 1, is_sampled=True) for one in chosen
        )
        step = builder.build(StepPlan(entries), None)
        fails = numbers.random() < 0.2
        if fails:
            with pytest.raises(torch.OutOfMemoryError):
                upload(step, tables, CPU)
            continue
        tensors, _ = upload(step, tables, CPU)
        for sequence, row in zip(chosen, tensors.block_tables.tolist(), strict=True):
            assert row[: len(sequence.block_table)] == sequence.block_table
            num_read += 1
    assert num_read > 1000
