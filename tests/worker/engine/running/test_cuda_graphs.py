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
from worker.engine.running.cuda_graphs import DecodeGraphs, graph_sizes
from worker.engine.running.gpu_steps import PaddedDecode
from worker.engine.running.input_builder import PackedStep

VOCAB, HIDDEN = 32, 8


class Graph:
    """A recording of nothing."""

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        """Leave what was there."""


class Decode:
    """Hidden states and logits that say of which size the Step was."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Tensor]] = []

    def forward(self, size: int) -> tuple[Tensor, Tensor]:
        hidden, logits = (torch.full((size, width), float(size)) for width in (HIDDEN, VOCAB))
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


def decode_step(count: int) -> PackedStep:
    numbers = np.zeros(count, dtype=np.int64)
    return PackedStep(
        token_ids=numbers,
        positions=numbers,
        places=numbers,
        slots=numbers,
        num_tokens=[1] * count,
        rows=numbers,
        all_block_tables=numbers.reshape(count, 1),
        tables=([],) * count,
        output_rows=None,
        sampled=tuple(make_sequence(number, [1]) for number in range(count)),
        sampling=None,
    )


@pytest.mark.parametrize("most", [6, 100, 256])
def test_graphs_hold_the_outputs_of_the_largest_and_no_more(most: int, recorded: list[Any]) -> None:
    decode = Decode()
    graphs = DecodeGraphs(cast("PaddedDecode", decode), most)
    outputs = graphs.outputs(decode_step(most), None)
    assert outputs is not None
    num_bytes = sum(one.untyped_storage().nbytes() for one in outputs)
    assert decode.held_bytes + num_bytes == most * (VOCAB + HIDDEN) * 4
    # The largest first, whose memory the others then share.
    assert recorded == [None] + ["pool"] * (len(graph_sizes(most)) - 1)
    sizes = [next(size for size in graph_sizes(most) if size > row) for row in range(most)]
    assert [one[:, 0].tolist() for one in outputs] == [sizes, sizes]
    others = graphs.outputs(decode_step(1), None)
    assert others is not None
    assert [one.shape for one in others] == [(1, HIDDEN), (1, VOCAB)]
    assert [one.data_ptr() for one in others] == [one.data_ptr() for one in outputs]
    assert graphs.num_rows == 1
