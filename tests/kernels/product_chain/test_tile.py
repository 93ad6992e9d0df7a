"""What tiles prefetch is the whole next panel; results do not show it."""

from typing import Any

import pytest

from kernels.product_chain import tile
from kernels.product_chain.tile import PANEL, TILE_ROWS, WORD

LINE = 64  # bytes of a cache line
fetched: Any = tile.fetched
tiles_of: Any = tile.tiles_of


@pytest.mark.parametrize("num_tiles", range(2, 44))
def test_tiles_prefetch_a_whole_panel_together(num_tiles: int) -> None:
    num_words = 96
    size = num_words * PANEL * WORD
    first, step = fetched.py_func(num_tiles, LINE, 2, 3, num_words)
    assert first == LINE + 2 * size
    places = [first + word * step for word in range(num_tiles * num_words)]
    if step > LINE:
        places += [place + LINE for place in places]
    lines = {place // LINE for place in places}
    assert lines >= set(range(first // LINE, (first + size) // LINE))
    assert max(places) < first + size + num_tiles * num_words + LINE  # a step is a whole number of bytes
    assert step <= 2 * LINE


@pytest.mark.parametrize(("num_tiles", "panel"), [(1, 0), (4, 3), (4, 4)])
def test_a_single_tile_and_the_last_panel_prefetch_nothing(num_tiles: int, panel: int) -> None:
    assert fetched.py_func(num_tiles, LINE, panel, 3, 96) == (LINE, 0)


@pytest.mark.parametrize("num_rows", range(1, 70))
def test_rows_are_divided_into_as_few_tiles_as_can_hold_them(num_rows: int) -> None:
    count = tiles_of.py_func(num_rows)
    assert (count - 1) * TILE_ROWS < num_rows <= count * TILE_ROWS
