"""Which faults come when, by seed."""

import random
from collections.abc import Iterator, Sequence

GAP_SECONDS = (0.0, 2.0)


def plan(seed: int, count: int, kinds: Sequence[str]) -> Iterator[tuple[float, str]]:
    """Yield (seconds to wait, kind) for each fault; kinds come equally often over the seeds, in any order."""
    rng = random.Random(seed)
    first = seed * count  # each seed goes on in the cycle of kinds where the one before left off
    chosen = [kinds[(first + number) % len(kinds)] for number in range(count)]
    rng.shuffle(chosen)
    for kind in chosen:
        yield rng.uniform(*GAP_SECONDS), kind
