"""Run a workload through the engine, under the settings in the environment, and report in JSON lines.

    python -m worker.tuning.trial REQUESTS.jsonl CONCURRENCY LIMIT_SECONDS

A trial is a process of its own, because it may run out of memory or crash, and its peak of memory is its own.
Each line but the last is the progress after a quarter of the requests; the last has the results. The warm-up
is not timed. After LIMIT_SECONDS the process is killed by SIGALRM.
"""

import json
import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.settings import NO_SERVICES, read_settings
from worker.tasks.engine_config import engine_config
from worker.tuning.requests import TunedRequest, read_requests

NUM_PARTS = 4  # after each, the trial reports
NUM_WARM_UP = 4  # requests
WARM_UP_TOKENS = 4


class WorkloadRun:
    """Runs requests, at most `concurrency` at once, and measures each from its submission."""

    def __init__(self, engine: EngineThread, requests: Sequence[TunedRequest], concurrency: int) -> None:
        self._engine = engine
        self._requests = requests
        self._concurrency = concurrency
        self.outputs: list[str | None] = [None] * len(requests)  # None: it failed
        self.latencies: list[float] = []  # seconds from submission to end
        self.num_tokens = 0
        self.errors: list[str] = []

    def run(self, report: Callable[[int, float], None]) -> float:
        """Run all requests; return the seconds that it took.

        `report` gets the number of the quarter that has just ended, and its end's tokens a second.
        """
        began_at = time.perf_counter()
        queue = iter(enumerate(self._requests))
        work = self._engine.submit(list[GenerationRequest]())
        submitted: dict[int, float] = {}
        num_ended, part = 0, 1
        while num_ended < len(self._requests):
            next_ones = list(islice(queue, self._concurrency - len(submitted)))
            submitted |= dict.fromkeys([index for index, _ in next_ones], time.perf_counter())
            self._engine.extend(work, [_generation(index, request) for index, request in next_ones])
            completions = work.take(timeout=1.0)
            now = time.perf_counter()
            for completion in completions:
                index = int(str(completion.id))
                self._ended(index, completion, now - submitted.pop(index))
            num_ended += len(completions)
            while part <= NUM_PARTS and num_ended >= part * len(self._requests) / NUM_PARTS:
                report(part, self.num_tokens / (now - began_at))
                part += 1
        return time.perf_counter() - began_at

    def _ended(self, index: int, completion: Completion, seconds: float) -> None:
        self.num_tokens += completion.num_output_tokens
        self.latencies.append(seconds)
        if completion.error is None:
            self.outputs[index] = completion.text
        else:
            self.errors.append(completion.error)


def _generation(index: int, request: TunedRequest) -> GenerationRequest:
    return GenerationRequest(
        index,
        request.prompt,
        request.params,
        add_special_tokens=request.add_special_tokens,
        job="workload",
    )


def warm_up(engine: EngineThread, requests: Sequence[TunedRequest]) -> None:
    """Run some requests for a few tokens, so that kernels are compiled; then empty the prefix cache."""
    few = [
        replace(one, params=replace(one.params, max_tokens=WARM_UP_TOKENS, min_tokens=0))
        for one in requests[:NUM_WARM_UP]
    ]
    WorkloadRun(engine, few, len(few)).run(lambda *_: None)
    engine.clear_prefix_cache()


def peak_bytes(device: str) -> int:
    """Return the most memory that this process has used: of the GPU if it uses one, else of the machine."""
    if device == "cuda":
        import torch  # noqa: PLC0415 - it is loaded already

        return int(torch.cuda.max_memory_reserved())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10  # macOS counts in bytes, Linux in KiB


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def measure(requests: Sequence[TunedRequest], concurrency: int) -> dict[str, Any]:
    """Load the engine, run the workload and return the results; raises EngineError, RuntimeError."""
    config = engine_config(read_settings(**NO_SERVICES))
    engine = EngineThread(lambda: Engine(config))
    engine.start()
    warm_up(engine, requests)
    run = WorkloadRun(engine, requests, concurrency)
    seconds = run.run(lambda part, rate: say({"part": part, "tokens_per_second": rate}))
    engine.stop()
    if len(run.errors) == len(requests):
        raise RuntimeError(f"every request failed: {run.errors[0]}")
    return {
        "tokens_per_second": run.num_tokens / seconds,
        "latency_p95_ms": 1000 * percentile(run.latencies, 0.95),
        "latency_mean_ms": 1000 * sum(run.latencies) / len(run.latencies),
        "peak_memory_bytes": peak_bytes(config.device),
        "num_failed": len(run.errors),
        "outputs": run.outputs,
    }


def say(value: dict[str, Any]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main(file: str, concurrency: str, limit_seconds: str) -> int:
    """Run the command line; return its exit status."""
    signal.alarm(int(limit_seconds))
    try:
        say(measure(read_requests(Path(file)), int(concurrency)))
    except (EngineError, RuntimeError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
