"""Chooses the kernel for a number of tokens, from tables that `bench.py` measures, one JSON file per chip.

The tables are in an op's `tuned/`. `default.json` serves every chip without a table of its own; its values
are not measured.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Regime:
    """A kernel and its launch sizes for up to `max_tokens` tokens."""

    kind: str  # "gemv", "tile" (split along K where that is what fills the GPU), "dense" (cuBLAS)
    max_tokens: int | None  # None: any number
    block_m: int = 1
    block_n: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 3
    num_programs: int = 0  # split along K until there are about as many; 0: never

    def num_splits(self, out_features: int, in_features: int) -> int:
        """Return the number of splits of a weight.

        It does not depend on the number of tokens, so neither does the order of a sum.
        """
        wanted = self.num_programs // -(-out_features // self.block_n)
        return max(1, min(wanted, in_features // (4 * self.block_k)))


@dataclass(frozen=True, slots=True)
class Crossover:
    """One chip's regimes by format, in rising order of `max_tokens`."""

    chip: str  # "default": any
    gpu: str  # on which it was measured
    measured: str | None  # the day; None: not yet
    formats: dict[str, tuple[Regime, ...]]

    def choose(self, format_: str, num_tokens: int) -> Regime:
        """Return the first regime that serves `num_tokens`."""
        return next(
            regime
            for regime in self.formats[format_]
            if regime.max_tokens is None or num_tokens <= regime.max_tokens
        )


@functools.cache
def read_crossover(folder: Path, chip: str) -> Crossover:
    """Return the table of a chip, by `device.chip_name`, or the default table.

    Raises ValueError if the table has a gap.
    """
    file = folder / f"{chip}.json"
    return _read(file if file.is_file() else folder / f"{DEFAULT}.json")


def token_counts(chip: str, most: int) -> list[int]:
    """Return numbers of tokens, up to `most`, that together choose every regime of every op."""
    counts = {1, most}
    for folder in Path(__file__).parent.glob("*/tuned"):
        for regimes in read_crossover(folder, chip).formats.values():
            for limit in (regime.max_tokens for regime in regimes if regime.max_tokens is not None):
                counts |= {limit, limit + 1}
    return sorted(count for count in counts if count <= most)


def launched_regimes(
    folder: Path, format_: str, chips: Sequence[str]
) -> list[tuple[Regime, tuple[str, ...]]]:
    """Return every regime of a format in an op's tables, each with those of `chips` that may launch it."""
    tables = [_read(file) for file in sorted(folder.glob("*.json"))]
    own = {table.chip for table in tables}
    found: dict[Regime, set[str]] = {}
    for table in tables:
        of_table = set(chips) - own if table.chip == DEFAULT else {table.chip} & set(chips)
        for regime in table.formats[format_] if of_table else ():
            found.setdefault(regime, set()).update(of_table)
    return sorted(((one, tuple(sorted(where))) for one, where in found.items()), key=str)


def _read(file: Path) -> Crossover:
    table = json.loads(file.read_text(encoding="utf-8"))
    formats = {name: tuple(Regime(**row) for row in rows) for name, rows in table["formats"].items()}
    for name, regimes in formats.items():
        limits = [regime.max_tokens for regime in regimes]
        rising = [limit for limit in limits if limit is not None]
        if limits != [*sorted(set(rising)), None]:
            raise ValueError(f"{file}: {name}: max_tokens must rise and end with null, not {limits}")
    return Crossover(file.stem, table["gpu"], table["measured"], formats)
