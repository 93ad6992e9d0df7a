"""Runs one peer in its own process; imports the standard library only, and the peer's file imports the rest.

    timed_run.py convert PEER.py MODEL FORM TARGET
    timed_run.py run PEER.py JOB.json RESULT.json

A job holds the arguments of `load` and the prompts of each run; the first run is a warm-up and is not timed.
"""

import importlib.metadata
import json
import os
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def run(peer: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Load, warm up and time the runs; raise ValueError if a request did not get exactly its max_tokens."""
    started = time.perf_counter()
    generate = peer["load"](
        Path(job["path"]), job["dtype"], job["threads"], job["max_model_len"], job["options"]
    )
    load_seconds = time.perf_counter() - started
    outputs: list[list[int]] = []
    seconds: list[float] = []
    for number, prompts in enumerate(job["runs"]):
        started = time.perf_counter()
        result = generate(prompts, job["max_tokens"])
        elapsed = time.perf_counter() - started
        lengths = [len(tokens) for tokens in result]
        if lengths != job["max_tokens"]:
            raise ValueError(f"run {number}: outputs of {lengths} tokens, not {job['max_tokens']}")
        if number == 0:
            outputs = [[int(token) for token in tokens] for tokens in result]
        else:
            seconds.append(elapsed)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "load_s": round(load_seconds, 3),
        "runs": seconds,
        "peak_rss_mb": round(peak_kib / 1024, 1),
        "versions": {name: importlib.metadata.version(name) for name in job["packages"]},
        "outputs": outputs,
    }


def main() -> None:
    """Run the command line."""
    command, file, *arguments = sys.argv[1:]
    peer = runpy.run_path(file)
    if command == "convert":
        model, form, target = arguments
        peer["convert"](Path(model), form, Path(target))
        return
    job, result = map(Path, arguments)
    result.write_text(json.dumps(run(peer, json.loads(job.read_text()))))
    sys.stdout.flush()
    os._exit(0)  # some engines' threads never end by themselves


if __name__ == "__main__":
    main()
