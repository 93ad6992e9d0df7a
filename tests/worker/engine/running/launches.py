"""Runs engines' Steps over a driver that is not there, and compiles every kernel that they launch.

    python -m tests.worker.engine.running.launches CHECKPOINT FIELDS

In a process of its own, in which Triton does not interpret: its own binder takes each launch apart, and what
it would run is compiled, noted and not run. So outputs are zeros. Prints JSON: what was compiled at start,
and what after it. FIELDS are those of an EngineConfig, as JSON.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import kernels.device
from tests.fixtures.generation import make_engine
from tests.fixtures.speculation import guess_with_heads
from worker.engine.engine import Engine
from worker.engine.models.registry import read_architecture
from worker.engine.requests.generation import GenerationRequest
from worker.engine.running import model_runner
from worker.engine.running.cuda_graphs import graph_sizes, output_rows_of, size_for
from worker.engine.running.gpu import num_logits
from worker.engine.running.gpu_step_input import AttentionPlanner
from worker.engine.running.gpu_steps import PaddedStep, StepSize, run_each_kind
from worker.engine.running.input_builder import PackedStep
from worker.values.sampling import SamplingParams

CPU = torch.device("cpu")


class Driver:
    """An H100 without anything behind it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Kernel:
    """What a compiled one offers to a launch."""

    function = packed_metadata = None

    def launch_metadata(self, *args: Any) -> None:
        """Describe nothing."""

    def run(self, *args: Any) -> None:
        """Launch nothing."""


def note_compilations(compiled: set[str]) -> None:
    """Compile each kernel with the types and constants of its launch, None among them, and note it."""

    def compile_only(
        self: Any,
        key: str,
        signature: Any,
        device: int,
        constants: Any,
        options: Any,
        attributes: Any,
        *_: Any,
    ) -> Kernel:
        compiled.add(f"{self.fn.__module__}.{self.fn.__qualname__} {key}")
        source = self.ASTSource(self, signature, constants, attributes)
        triton.compile(source, target=Driver().get_current_target(), options=vars(options))
        kernel = self.device_caches[device][0][key] = Kernel()
        return kernel

    JITFunction._do_compile = compile_only


class Graphs:
    """Runs the Steps that graphs are for, launch by launch."""

    num_rows = 0

    def __init__(self, padded: PaddedStep, sizes: list[StepSize]) -> None:
        self._padded, self._sizes = padded, sizes

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the outputs of a Step, if it fits in one of the sizes."""
        size = size_for(step, self._sizes)
        if size is None:
            return None
        self._padded.fill(step, size, before)
        self.num_rows = size.num_tokens
        hidden, logits = self._padded.forward(size)
        return output_rows_of(step, hidden), output_rows_of(step, logits)


def start(engine: Engine) -> None:
    """Do what an engine on a GPU does before its first request."""
    runner, info, config = engine._runner, engine.model_info, engine.config
    planner = AttentionPlanner(
        read_architecture(config.model),
        runner._kv_cache[0],
        model_runner.TORCH_DTYPES[config.dtype],
        info.max_model_len,
    )
    with torch.inference_mode():
        run_each_kind(
            runner._model,
            runner._kv_cache,
            planner,
            CPU,
            max_num_sequences=config.max_num_sequences,
            max_tokens=config.max_tokens_per_step,
            max_model_len=info.max_model_len,
            num_logits=num_logits(config),
            has_trees=runner.medusa is not None,
        )
        sizes = graph_sizes(
            config.max_num_sequences, config.max_tokens_per_step, speculates=config.speculates
        )
        padded = PaddedStep(
            runner._model,
            runner._kv_cache,
            planner,
            CPU,
            largest=StepSize(*map(max, zip(*sizes, strict=True))),
            max_model_len=info.max_model_len,
            tables=runner._gpu.tables,
            has_trees=runner.medusa is not None,
        )
        for size in sizes:
            padded.forward(size)
        runner._gpu.graphs = Graphs(padded, sizes)


def run_mixed(engine: Engine) -> int:
    """Run requests of many lengths, which arrive while others run; return the number of Steps."""
    numbers = random.Random(3)
    for index in range(90):
        length = 600 if index == 80 else numbers.choice((1, 2, 3, 7, 16, 33))
        prompt = [numbers.randrange(2, 300) for _ in range(length)]
        params = SamplingParams(
            max_tokens=numbers.randrange(1, 40),
            temperature=numbers.choice((0.0, 0.9)),
            seed=index,
            ignore_eos=True,
            repetition_penalty=1.2 if index % 20 == 3 else 1.0,
            prompt_logprobs=1 if index % 20 == 7 else None,
        )
        engine.add(GenerationRequest(index, prompt, params))
        for _ in range(numbers.randrange(4)):
            engine.step()
    while engine.has_unfinished:
        engine.step()
    return engine.stats.steps


def main(checkpoint: str, fields: str) -> None:
    compiled: set[str] = set()
    note_compilations(compiled)
    triton.runtime.driver.set_active(Driver())
    torch.empty = torch.zeros  # type: ignore[assignment]
    torch.empty_like = torch.zeros_like  # type: ignore[assignment]
    kernels.device.uses_triton = lambda _: True  # type: ignore[assignment]
    model_runner.open_device = lambda _: CPU  # type: ignore[assignment]
    engine = make_engine(Path(checkpoint), device="cuda", **json.loads(fields))
    start(engine)
    if engine._runner.medusa is not None:
        guess_with_heads(engine)
        waiting = engine._speculation._waiting
        assert waiting is not None
        waiting.wants = lambda plan: bool(plan.entries)  # type: ignore[method-assign]
    at_start = set(compiled)
    num_steps = run_mixed(engine)
    later = sorted(compiled - at_start)
    found = {
        "at_start": len(at_start),
        "num_steps": num_steps,
        "num_guesses": engine.stats.medusa_guessed_tokens,
        "later": later,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
