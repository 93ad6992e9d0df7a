"""Defines the fixed workloads: the file format, the length distributions, and the token shift of each run.

It must not import an engine: the parent of a comparison imports it and must stay small (see
`benchmarks.peers`).
"""

import json
import math
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

NUM_RESERVED_IDS = 3  # begin, end and padding keep their ids
SHIFT = 977
SHORTEST_SOURCE = 12_000  # characters
CHARACTERS_PER_TOKEN = 12  # more than any long stretch of source needs


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One line of a workload."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    text: str = ""


def read_workload(file: Path) -> list[WorkItem]:
    """Return the lines of a workload file; raise ValueError naming the first malformed line."""
    items = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            items.append(WorkItem(tuple(row["prompt_ids"]), row["max_tokens"], row.get("text", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file.name} line {number}: {type(error).__name__}: {error}") from error
    if not items:
        raise ValueError(f"{file.name} has no requests")
    return items


def write_workload(file: Path, items: Sequence[WorkItem]) -> None:
    """Write one JSON line per request: id, prompt_ids, text, max_tokens."""
    rows = (
        {"id": i, "prompt_ids": item.prompt_ids, "text": item.text, "max_tokens": item.max_tokens}
        for i, item in enumerate(items)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def shifted(items: Sequence[WorkItem], vocab_size: int, run: int) -> list[WorkItem]:
    """Return items of the same lengths with other tokens; run 0 returns the workload itself."""
    span = vocab_size - NUM_RESERVED_IDS

    def shift(token: int) -> int:
        return (
            token
            if token < NUM_RESERVED_IDS
            else (NUM_RESERVED_IDS + (token - NUM_RESERVED_IDS + SHIFT * run) % span)
        )

    return [WorkItem(tuple(map(shift, item.prompt_ids)), item.max_tokens) for item in items]


def read_sources() -> list[str]:
    """Return the longer ASCII modules of this Python's standard library, in order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text(encoding="utf-8", errors="ignore") for file in files]
    return [text for text in texts if len(text) >= SHORTEST_SOURCE and text.isascii()]


@dataclass(slots=True)
class Drawer:
    """Draws requests of exact lengths from source texts; the same seed gives the same requests."""

    tokenizer: Tokenizer
    sources: Sequence[str]
    numbers: random.Random

    def prompt(self, num_tokens: int, beginning: str = "") -> tuple[tuple[int, ...], str]:
        """Return ids and text of a passage that starts with `beginning` and encodes to exactly these ids."""
        first = tuple(self.tokenizer.encode(beginning).ids)
        while True:
            source = self.numbers.choice(self.sources)
            start = self.numbers.randrange(len(source))
            passage = beginning + source[start : start + num_tokens * CHARACTERS_PER_TOKEN]
            ids = tuple(self.tokenizer.encode(passage).ids[:num_tokens])
            text = self.tokenizer.decode(ids)
            is_stable = tuple(self.tokenizer.encode(text).ids) == ids
            if len(ids) == num_tokens and ids[: len(first)] == first and is_stable:
                return ids, text

    def item(self, num_tokens: int, outputs: tuple[int, int], beginning: str = "") -> WorkItem:
        """Return a request with a prompt of `num_tokens` and an output drawn evenly from `outputs`."""
        ids, text = self.prompt(num_tokens, beginning)
        return WorkItem(ids, self.numbers.randint(*outputs), text)

    def log_uniform(self, shortest: int, longest: int) -> int:
        """Return a length drawn evenly on a logarithmic scale."""
        return round(math.exp(self.numbers.uniform(math.log(shortest), math.log(longest))))


def ragged(draw: Drawer, num_requests: int) -> list[WorkItem]:
    """Return prompts of 16 to 512 tokens, short ones more often, with outputs of 16 to 128."""
    return [draw.item(draw.log_uniform(16, 512), (16, 128)) for _ in range(num_requests)]


def prefix(draw: Drawer, num_requests: int) -> list[WorkItem]:
    """Return prompts that share their first 384 tokens and end in 16 to 64 of their own."""
    _, shared = draw.prompt(384)
    return [draw.item(384 + draw.numbers.randint(16, 64), (16, 128), shared) for _ in range(num_requests)]


def long(draw: Drawer, num_requests: int) -> list[WorkItem]:
    """Return prompts of 1,400 to 1,900 tokens with outputs of 16 to 48."""
    return [draw.item(draw.numbers.randint(1400, 1900), (16, 48)) for _ in range(num_requests)]


WORKLOADS: dict[str, tuple[Callable[[Drawer, int], list[WorkItem]], int]] = {
    "ragged_small": (ragged, 64),
    "ragged_medium": (ragged, 32),
    "prefix": (prefix, 64),
    "long": (long, 24),
}


def draw_workloads(tokenizer: Tokenizer, sources: Sequence[str]) -> Iterator[tuple[str, list[WorkItem]]]:
    """Yield every workload with its name, each from a seed of its own."""
    for name, (law, num_requests) in WORKLOADS.items():
        draw = Drawer(tokenizer, sources, random.Random(name))
        yield name, law(draw, num_requests)
