"""Runs OpenVINO GenAI's continuous batching on checkpoints exported by optimum-intel."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# With transformers 5.1 and later, optimum-intel does not export Gemma 3.
REQUIREMENTS = (
    "torch==2.13.0",
    "openvino-genai==2026.4.1.0",
    "optimum-intel[openvino]==2.2.0",
    "transformers==4.57.6",
)
# It is built against a CUDA torch; with the CPU torch it fails when transformers imports it.
UNWANTED = ("torchvision",)
# int8 and int4 compress weights only; matrix products run in bf16.
FORMS = {"f32": "fp32", "bf16": "fp32", "int8": "int8", "int4": "int4"}
# Prefix caching is off because it measured slower, even on shared prefixes.
OPTIONS = {"tokens": 4096, "sequences": 64, "cache_gib": 1, "prefix_cache": 0}


def convert(model: Path, form: str, target: Path) -> None:
    """Export the checkpoint with its weights in `form`."""
    command = [sys.executable, "-I", "-m", "optimum.commands.optimum_cli", "export", "openvino"]
    command += ["--model", str(model), "--task", "text-generation-with-past", "--weight-format", form]
    subprocess.run([*command, str(target)], check=True)


def load(
    path: Path,
    dtype: str,
    threads: int,
    max_model_len: int,  # noqa: ARG001 - the cache grows by blocks, whatever the longest request
    options: dict[str, int],
) -> Callable[[list[list[int]], list[int]], list[list[int]]]:
    """Start a pipeline; its plugin chooses the precision of the KV cache."""
    import numpy as np
    import openvino
    from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

    scheduler = SchedulerConfig()
    scheduler.max_num_batched_tokens = options["tokens"]
    scheduler.max_num_seqs = options["sequences"]
    scheduler.cache_size = options["cache_gib"]
    scheduler.enable_prefix_caching = bool(options["prefix_cache"])
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32" if dtype == "f32" else "bf16",
    }
    pipeline = ContinuousBatchingPipeline(str(path), scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        configs = []
        for count in max_tokens:
            config = GenerationConfig()
            config.max_new_tokens = count
            config.ignore_eos = True
            config.do_sample = False
            configs.append(config)
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        return [list(result.m_generation_ids[0]) for result in pipeline.generate(inputs, configs)]

    return generate
