from hypothesis import given
from hypothesis import strategies as st

from worker.engine.scheduling.admission.memory_forecast import MemoryForecast

BLOCK_SIZE = 4
# Steps to the end, tokens known now: each holds just the Blocks these fill.
work = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8)


def blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def simulate(sequences: list[tuple[int, int]], num_shared: int, horizon: int) -> int:
    """The most Blocks in use, Step by Step."""
    return max(
        num_shared + sum(blocks(known + step) for steps, known in sequences if steps >= step)
        for step in range(min(horizon, max(steps for steps, _ in sequences)) + 1)
    )


def forecast_of(sequences: list[tuple[int, int]], num_shared: int) -> MemoryForecast:
    forecast = MemoryForecast(BLOCK_SIZE, num_shared)
    for steps, known in sequences:
        own = blocks(known)
        forecast.add(steps, own * BLOCK_SIZE - known, own, num_taken=own)
    return forecast


@given(work, st.integers(0, 10), st.integers(0, 70))
def test_never_less_than_what_comes_and_little_more(
    sequences: list[tuple[int, int]], num_shared: int, horizon: int
) -> None:
    truth = simulate(sequences, num_shared, horizon)
    assert truth <= forecast_of(sequences, num_shared).peak(horizon) <= truth + len(sequences)


@given(work, st.tuples(st.integers(1, 60), st.integers(1, 40)))
def test_remove_undoes_add(sequences: list[tuple[int, int]], other: tuple[int, int]) -> None:
    forecast = forecast_of(sequences, 0)
    before = forecast.peak(100)
    own = blocks(other[1])
    entry = (other[0], own * BLOCK_SIZE - other[1], own)
    forecast.add(*entry, num_taken=own)
    assert forecast.peak(100) >= before
    forecast.remove(*entry, num_taken=own)
    assert forecast.peak(100) == before


def test_one_that_ends_before_another_has_grown_needs_no_room_of_its_own() -> None:
    long = (400, 4)
    alone = forecast_of([long], 0).peak(1000)
    assert forecast_of([long, (40, 100)], 0).peak(1000) <= alone + 1
    assert forecast_of([long, (399, 100)], 0).peak(1000) > alone + 100
