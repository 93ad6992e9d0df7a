r"""Profiles the time of Steps by part.

    python -m benchmarks.step_profile --model DIR --workload FILE.jsonl --dtype f32|bf16|int8 --threads N

The workload is that of benchmarks.offline. It runs once to warm up, once plainly, and once with a stopwatch
around the parts. A part's time excludes the parts inside it, so the parts add up to the whole. The remaining
time of Step, runner and model is host work between operators. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

from torch import Tensor

from benchmarks.offline import run_workload
from benchmarks.workloads import WorkItem, read_workload, shifted
from worker.engine.engine import Engine
from worker.engine.models import decoder
from worker.engine.models.checkpoint import Weights
from worker.engine.models.decoder import Decoder
from worker.engine.models.layers import mlp
from worker.engine.models.layers.attention_layers import ChainedLayers
from worker.engine.models.layers.ends import Argmax, Embedding, argmax_of
from worker.engine.models.layers.layer_end import ChainedEnd
from worker.engine.models.layers.linear import ChainedLinear, Projection
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError
from worker.engine.running import model_runner
from worker.engine.running.input_builder import InputBuilder
from worker.engine.running.model_runner import ModelRunner
from worker.engine.scheduling.scheduler import Scheduler

METHODS: tuple[tuple[type, str, str], ...] = (
    (Engine, "step", "step host"),
    (Engine, "add", "add requests"),
    (Scheduler, "schedule", "schedule"),
    (Scheduler, "advance", "schedule"),
    (Scheduler, "finish", "schedule"),
    (ModelRunner, "execute", "runner host"),
    (InputBuilder, "build", "build input"),
    (Decoder, "forward", "model host"),
    (Decoder, "logits", "model host"),
    (ModelRunner, "_choose_on_cpu", "sampling"),
    # Each is one call, so its parts cannot be told apart.
    (ChainedLayers, "__call__", "layers"),
    (ChainedEnd, "__call__", "chains"),
)
SAMPLING = ("sample", "apply_rules", "token_logprobs")  # of worker.engine.running.model_runner
# The part to which each package of kernels/ belongs. A quantized product belongs to its projection.
KERNELS = {
    "paged_attention": "attention",
    "kv_write": "rotation, kv write",
    "rms_norm": "norms",
    "gate_mul": "activation",
}
PROJECTIONS = {
    "q_proj": "qkv",
    "qkv_proj": "qkv",
    "o_proj": "attention out",
    "gate_proj": "gate up",
    "gate_up_proj": "gate up",
    "down_proj": "down",
    "gate": "router",
}


class Stopwatch:
    """Measures the time of named parts; each excludes the parts inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    def clear(self) -> None:
        """Reset all times."""
        self.seconds.clear()
        self.calls.clear()

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped so that its time counts to `part`."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._open.append(part)
            self.calls[part] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return timed

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class TimedProjection:
    """A projection whose time is counted."""

    def __init__(self, part: str, projection: Projection, stopwatch: Stopwatch) -> None:
        self.out_features = projection.out_features
        self._call = stopwatch.around(part, projection)

    def __call__(self, x: Tensor) -> Tensor:
        """Return what the projection returns."""
        result: Tensor = self._call(x)
        return result


class TimedChainedLinear(ChainedLinear):
    """As TimedProjection; a chain that contains the product is one call, which is counted elsewhere."""

    __slots__ = ("_call",)

    def __init__(self, part: str, projection: ChainedLinear, stopwatch: Stopwatch) -> None:
        super().__init__(projection.weight)
        self._call = stopwatch.around(part, projection)

    def __call__(self, x: Tensor) -> Tensor:
        """Return what the projection returns."""
        result: Tensor = self._call(x)
        return result


def _timed(part: str, projection: Projection, stopwatch: Stopwatch) -> Projection:
    if isinstance(projection, ChainedLinear):
        return TimedChainedLinear(part, projection, stopwatch)
    return TimedProjection(part, projection, stopwatch)


@contextmanager
def instrumented(stopwatch: Stopwatch) -> Iterator[None]:
    """Put the stopwatch around every part, for engines that are built and run in this context."""
    linear, ends = Weights.linear, Weights.ends

    def timed_linear(self: Weights, names: list[str], *args: Any, **kwargs: Any) -> Projection:
        projection = linear(self, names, *args, **kwargs)
        kind = names[0].rsplit(".", 1)[-1]
        return projection if kind == "lm_head" else _timed(PROJECTIONS.get(kind, kind), projection, stopwatch)

    def timed_ends(self: Weights, *args: Any, **kwargs: Any) -> tuple[Embedding, Projection]:
        embedding, head = ends(self, *args, **kwargs)
        timed = head if argmax_of(head) else TimedProjection("head", head, stopwatch)
        return stopwatch.around("embedding", embedding), timed

    def timed_argmax(head: Projection) -> Argmax | None:
        argmax = argmax_of(head)
        return argmax and stopwatch.around("head", argmax)

    with ExitStack() as patches:

        def put(owner: Any, name: str, part: str) -> None:
            timed = stopwatch.around(part, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed))

        for owner, name, part in METHODS:
            put(owner, name, part)
        for name in SAMPLING:
            put(model_runner, name, "sampling")
        for module, name, part in _kernel_imports():
            put(module, name, part)
        activations = {key: stopwatch.around("activation", run) for key, run in mlp.ACTIVATIONS.items()}
        patches.enter_context(patch.dict(mlp.ACTIVATIONS, activations))
        patches.enter_context(patch.object(Weights, "linear", timed_linear))
        patches.enter_context(patch.object(Weights, "ends", timed_ends))
        patches.enter_context(patch.object(decoder, "argmax_of", timed_argmax))
        yield


def _kernel_imports() -> list[tuple[Any, str, str]]:
    """Return (module, name, part) for every operator that a module of the engine imported."""
    found = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("worker.engine."):
            continue
        for attribute, value in vars(module).items():
            package = getattr(value, "__module__", None) or ""
            if isinstance(value, FunctionType) and package.startswith("kernels."):
                part = KERNELS.get(package.split(".")[1])
                if part is not None:
                    planning = attribute.startswith("plan_")
                    found.append((module, attribute, f"{part} plan" if planning else part))
    return found


def profile(config: EngineConfig, items: Sequence[WorkItem]) -> dict[str, Any]:
    """Return the seconds of each part, and of the whole with and without the stopwatch."""
    plain = Engine(config)
    vocab_size = plain.model_info.vocab_size
    run_workload(plain, items)
    started = time.perf_counter()
    run_workload(plain, shifted(items, vocab_size, 1))
    plain_seconds = time.perf_counter() - started
    del plain
    stopwatch = Stopwatch()
    with instrumented(stopwatch):
        engine = Engine(config)
        run_workload(engine, items)
        stopwatch.clear()
        steps = engine.stats.steps
        started = time.perf_counter()
        run_workload(engine, shifted(items, vocab_size, 1))
        seconds = time.perf_counter() - started
    parts = sorted(stopwatch.seconds.items(), key=itemgetter(1), reverse=True)
    return {
        "plain_s": round(plain_seconds, 4),
        "profiled_s": round(seconds, 4),
        "steps": engine.stats.steps - steps,
        "parts_s": {part: round(value, 5) for part, value in parts},
        "calls": dict(stopwatch.calls),
    }


def print_table(result: dict[str, Any]) -> None:
    """Print one line per part, the largest first."""
    print(f"{'part':<20}{'seconds':>10}{'share':>8}{'us/Step':>10}{'calls/Step':>12}")
    for part, seconds in result["parts_s"].items():
        calls = result["calls"][part] / result["steps"]
        share, per_step = seconds / result["profiled_s"], seconds / result["steps"] * 1e6
        print(f"{part:<20}{seconds:>10.3f}{share:>8.1%}{per_step:>10.0f}{calls:>12.1f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    options = parser.parse_args(arguments)
    try:
        config = EngineConfig(model=options.model, dtype=options.dtype, num_threads=options.threads)
        result = profile(config, read_workload(options.workload))
    except (EngineError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print_table(result)
    header = {"model": options.model.resolve().name, "dtype": options.dtype, "threads": options.threads}
    print(json.dumps(header | result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
