"""Makes what the measurements share: the checkpoint, its workload, and runs in turns."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.checkpoints import SIZES, train_tokenizer, write_checkpoint
from benchmarks.offline import run_workload
from benchmarks.workloads import Drawer, WorkItem, ragged, read_sources, shifted
from worker.engine.engine import Engine
from worker.engine.requests.config import EngineConfig

NUM_REQUESTS = 48
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Setup:
    """Checkpoints with random weights (those of benchmarks.prepare), and requests of mixed lengths."""

    folder: Path  # of the checkpoints
    tokenizer: Tokenizer
    items: Sequence[WorkItem]
    draw: Drawer
    rounds: int

    def checkpoint(self, name: str) -> Path:
        """Return one of the checkpoints, which is written when it is first asked for."""
        directory = self.folder / name
        if not directory.exists():
            write_checkpoint(directory, SIZES[name], self.tokenizer)
        return directory

    @property
    def model(self) -> Path:
        """The one that most figures are measured with."""
        return self.checkpoint("small")

    def engine(self, dtype: str = "f32", *, model: Path | None = None, **fields: object) -> Engine:
        """Return an engine on a checkpoint; `fields` are EngineConfig's."""
        return Engine(EngineConfig(model=model or self.model, dtype=dtype, **fields))  # type: ignore[arg-type]


def prepare(folder: Path, rounds: int = ROUNDS) -> Setup:
    """Train the tokenizer of checkpoints that are written into a folder, and draw the requests."""
    sources = read_sources()
    tokenizer = train_tokenizer(sources)
    draw = Drawer(tokenizer, sources, random.Random("stated"))
    return Setup(folder, tokenizer, ragged(draw, NUM_REQUESTS), draw, rounds)


def run_seconds(engine: Engine, items: Sequence[WorkItem], turn: int, *, at_once: int | None = None) -> float:
    """Return the seconds of a workload, all of it or so many requests at once; each turn has other tokens."""
    fresh = shifted(items, engine.model_info.vocab_size, turn)
    started = time.perf_counter()
    for start in range(0, len(fresh), at_once or len(fresh)):
        run_workload(engine, fresh[start : start + (at_once or len(fresh))])
    return time.perf_counter() - started


def in_turns(sides: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Run each side once in every round, after a round that is not timed; return their seconds by round.

    The side that goes first alternates, so that a machine that changes favours none.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        order = list(sides) if turn % 2 else list(sides)[::-1]
        for name in order:
            taken = sides[name](turn)
            if turn:
                seconds[name].append(taken)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], slow: str, fast: str) -> float:
    """Return the median over rounds of one side's seconds by the other's."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def rounded(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median seconds of each side."""
    return {f"{name}_s": round(statistics.median(values), 4) for name, values in seconds.items()}
