"""Says which rows of a tree do not read each other, for attention in which branches share their stem."""

from collections.abc import Sequence

MAX_TREE_ROWS = 32


def hidden_places(parents: Sequence[int]) -> list[int]:
    """Return, for each row of a tree, the places before its own that it does not read, as bits.

    `parents` are numbers of rows, each smaller than that of its child; -1: none. A row reads its ancestors
    and itself. Its bit `n` is set if it does not read the place `n + 1` before its own; so 0 means that it
    reads all of them. Raises ValueError for a tree of more than MAX_TREE_ROWS rows.
    """
    if len(parents) > MAX_TREE_ROWS:
        raise ValueError(f"hidden_places: {len(parents)} rows are more than {MAX_TREE_ROWS}")
    paths: list[set[int]] = []
    for row, parent in enumerate(parents):
        paths.append({row} if parent < 0 else paths[parent] | {row})
    return [
        sum(1 << (row - other - 1) for other in range(row) if other not in path)
        for row, path in enumerate(paths)
    ]
