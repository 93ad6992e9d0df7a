"""Orders the fields of a table's rows so that their prompts begin alike as far as they can. Knows no files.

The greedy method of Liu et al., "Optimizing LLM Queries in Relational Data Analytics Workloads" (2024), by
columns: the column that shares most comes first, and each group of equal values goes on by itself.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

Fields = Mapping[str, str]  # the fields of one row, as its prompt has them, by column


def order_fields(rows: Sequence[Fields]) -> list[list[str]]:
    """Return the order of the columns in each row's prompt.

    Columns that share nothing come last, in the order of the row.
    """
    orders: list[list[str]] = [[] for _ in rows]
    left = [(list(range(len(rows))), list(dict.fromkeys(name for row in rows for name in row)))]
    while left:
        group, columns = left.pop()
        counts = {name: Counter(rows[i][name] for i in group if name in rows[i]) for name in columns}
        useful = {name: found for name, found in counts.items() if _saved(found)}
        if not useful:
            continue
        first = _choose(rows, group, useful)
        columns = [name for name in useful if name != first]
        groups: dict[str | None, list[int]] = {}
        for i in group:
            value = rows[i].get(first)
            is_shared = value is not None and useful[first][value] > 1
            if is_shared:
                orders[i].append(first)
            groups.setdefault(value if is_shared else None, []).append(i)
        left += [(members, columns) for members in groups.values() if len(members) > 1]
    return [
        [*order, *(name for name in row if name not in order)]
        for order, row in zip(orders, rows, strict=True)
    ]


def _saved(counts: Counter[str]) -> int:
    """Return the characters that equal values share if their column comes first."""
    return sum(len(text) * (count - 1) for text, count in counts.items())


def _choose(rows: Sequence[Fields], group: Sequence[int], useful: Mapping[str, Counter[str]]) -> str:
    """Return the column to put first: the one that shares most, or one that costs it little by going before.

    A category goes before the product that it follows from, as then products share their category too.
    """

    def goes_before(name: str, other: str) -> bool:
        num_pairs = len({(rows[i].get(name), rows[i].get(other)) for i in group})
        return _cost(useful[name], num_pairs) > _cost(useful[other], num_pairs)

    most, *others = sorted(useful, key=lambda name: -_saved(useful[name]))
    first = most
    for name in others:
        if goes_before(name, most) and (first == most or goes_before(name, first)):
            first = name
    return first


def _cost(counts: Counter[str], num_pairs: int) -> float:
    """Return the characters that are computed more often if the column comes second and not first."""
    mean = sum(map(len, counts)) / len(counts)
    return mean * (num_pairs - len(counts))
