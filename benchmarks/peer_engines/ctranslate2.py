"""Runs CTranslate2 in padded batches, longest prompts first.

It has no continuous batching, and no bf16 on a CPU.
"""

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

REQUIREMENTS = ("torch==2.13.0", "ctranslate2==4.8.5", "transformers==5.23.0")
FORMS = {"f32": "float32", "int8": "int8"}
# Batches are small because every row is computed until the batch's longest output ends.
OPTIONS = {"batch": 4, "prefix_cache": 1}
WORTH_SHARING = 16  # tokens


def convert(model: Path, form: str, target: Path) -> None:
    """Convert the checkpoint with its weights in `form`."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(model)).convert(str(target), quantization=form)


def shared_beginning(prompts: list[list[str]]) -> list[str]:
    """Return the prompts' common prefix, never a whole prompt; empty if too short to be worth sharing."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    shared = [tokens[0] for tokens in alike][: min(map(len, prompts)) - 1]
    return shared if len(shared) >= WORTH_SHARING else []


def load(
    path: Path,
    dtype: str,
    threads: int,
    max_model_len: int,  # noqa: ARG001 - nothing is reserved ahead
    options: dict[str, int],
) -> Callable[[list[list[int]], list[int]], list[list[int]]]:
    """Start one worker per thread; this measured faster than one worker with all threads."""
    import ctranslate2

    generator = ctranslate2.Generator(
        str(path), device="cpu", compute_type=FORMS[dtype], inter_threads=threads, intra_threads=1
    )
    # The library takes the text of tokens, not their ids.
    vocabulary = json.loads((path / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        texts = [[vocabulary[token] for token in prompt] for prompt in prompts]
        shared = shared_beginning(texts) if options["prefix_cache"] else []
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), max_tokens[i]), reverse=True)
        batches = [order[i : i + options["batch"]] for i in range(0, len(order), options["batch"])]
        outputs: list[list[int]] = [[] for _ in prompts]
        pending = []
        for batch in batches:
            longest = max(max_tokens[i] for i in batch)
            pending += generator.generate_batch(
                [texts[i][len(shared) :] for i in batch],
                static_prompt=shared or None,
                max_length=longest,
                min_length=longest,
                sampling_topk=1,
                include_prompt_in_result=False,
                asynchronous=True,
            )
        for i, result in zip(order, pending, strict=True):
            outputs[i] = result.result().sequences_ids[0][: max_tokens[i]]
        return outputs

    return generate
