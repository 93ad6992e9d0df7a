"""What recorded decode Steps keep of memory. The recording is a stand-in, which runs what it records."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fixtures.scheduling import make_sequence
from worker.engine.choosing.row_reader import RowSpan
from worker.engine.running.cuda_graphs import StepGraphs, graph_sizes, output_rows_of, size_for
from worker.engine.running.gpu_steps import PaddedStep, StepSize
from worker.engine.running.input_builder import PackedStep

VOCAB, HIDDEN = 32, 8


class Graph:
    """A recording of nothing."""

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        """Leave what was there."""


class Padded:
    """Hidden states and logits that say of which size the Step was."""

    has_trees = False

    def __init__(self) -> None:
        self.made: list[weakref.ref[Tensor]] = []

    def forward(self, size: StepSize) -> tuple[Tensor, Tensor]:
        num_rows = size.num_tokens
        hidden, logits = (torch.full((num_rows, width), float(num_rows)) for width in (HIDDEN, VOCAB))
        self.made += map(weakref.ref, (hidden, logits))
        return hidden, logits

    def fill(self, *_: Any) -> None:
        """Put nothing anywhere."""

    @property
    def held_bytes(self) -> int:
        return sum(one.nbytes for made in self.made if (one := made()) is not None)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pools that recordings were given, in order."""
    pools: list[Any] = []

    @contextmanager
    def record(_: Graph, pool: Any = None) -> Iterator[None]:
        pools.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return pools


def step_of(
    *num_tokens: int,
    output_rows: list[int] | None = None,
    spans: tuple[RowSpan, ...] = (),
    hidden: bool = False,
) -> PackedStep:
    count, total = len(num_tokens), sum(num_tokens)
    numbers = np.zeros(total, dtype=np.int64)
    num_sampled = total if output_rows is None else len(output_rows)
    return PackedStep(
        token_ids=numbers,
        positions=numbers,
        places=numbers,
        slots=numbers,
        num_tokens=list(num_tokens),
        rows=numbers[:count],
        all_block_tables=numbers[:count].reshape(count, 1),
        tables=([],) * count,
        output_rows=output_rows,
        sampled=tuple(make_sequence(number, [1]) for number in range(num_sampled)),
        sampling=None,
        spans=spans,
        hidden=numbers if hidden else None,
    )


@pytest.mark.parametrize("most", [6, 100, 256])
def test_graphs_hold_the_outputs_of_the_largest_and_no_more(most: int, recorded: list[Any]) -> None:
    padded, all_sizes = Padded(), graph_sizes(most, 8192, speculates=False)
    graphs = StepGraphs(cast("PaddedStep", padded), all_sizes)
    outputs = graphs.outputs(step_of(*[1] * most), None)
    assert outputs is not None
    num_bytes = sum(one.untyped_storage().nbytes() for one in outputs)
    assert padded.held_bytes + num_bytes == most * (VOCAB + HIDDEN) * 4
    # The largest first, whose memory the others then share.
    assert recorded == [None] + ["pool"] * (len(all_sizes) - 1)
    sizes = [next(size for size, _ in all_sizes if size > row) for row in range(most)]
    assert [one[:, 0].tolist() for one in outputs] == [sizes, sizes]
    others = graphs.outputs(step_of(1), None)
    assert others is not None
    assert [one.shape for one in others] == [(1, HIDDEN), (1, VOCAB)]
    assert [one.data_ptr() for one in others] == [one.data_ptr() for one in outputs]
    assert graphs.num_rows == 1


@pytest.mark.usefixtures("recorded")
def test_steps_of_trees_fit_only_where_there_are_trees() -> None:
    padded = Padded()
    graphs = StepGraphs(cast("PaddedStep", padded), graph_sizes(4, 100, speculates=True))
    assert graphs.outputs(step_of(3, 1), None) is not None
    assert graphs.num_rows == 4
    assert graphs.outputs(step_of(3, 1, hidden=True), None) is None
    padded.has_trees = True
    assert graphs.outputs(step_of(3, 1, hidden=True), None) is not None


def test_the_smallest_size_that_fits() -> None:
    sizes = graph_sizes(32, 100, speculates=True)
    sizes.sort(key=lambda size: (size.num_tokens, size.num_sequences))
    found = {
        numbers: size_for(step_of(*numbers), sizes)
        for numbers in [(1,), (1, 1, 1), (2,), (9,), (5, 1), (1, 1, 2), (9, 9, 9), (13,) * 8, (1,) * 33]
    }
    assert found == {
        (1,): (1, 1),
        (1, 1, 1): (4, 4),
        (2,): (1, 2),
        (9,): (1, 13),
        (5, 1): (2, 8),
        (1, 1, 2): (4, 8),
        (9, 9, 9): (4, 32),
        (13,) * 8: None,  # more than 100 tokens
        (1,) * 33: None,
    }


def test_rows_of_readouts_and_steps_that_choose_nothing_fit_in_none() -> None:
    sizes = graph_sizes(8, 100, speculates=True)
    span = RowSpan(cast("Any", None), 1)
    assert size_for(step_of(3, 1), sizes)
    assert size_for(step_of(3, 1, spans=(span,)), sizes) is None
    assert size_for(step_of(3, output_rows=[]), sizes) is None


def test_only_rows_that_choose_a_token_are_outputs() -> None:
    rows = torch.arange(20).reshape(10, 2)
    assert output_rows_of(step_of(3, 1), rows)[:, 0].tolist() == [0, 2, 4, 6]
    assert output_rows_of(step_of(3, 1, output_rows=[2, 3]), rows)[:, 0].tolist() == [4, 6]
