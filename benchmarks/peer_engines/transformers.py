"""Runs transformers with its continuous batching; --option padded=ROWS selects padded `generate` batches."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

REQUIREMENTS = ("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0")
FORMS = {"f32": None, "bf16": None}
# No pages: as many as fit.
OPTIONS = {"padded": 0, "tokens": 1024, "sequences": 64, "page": 32, "pages": 1280, "cuda": 0}
NO_END = -1
PADDING = 2

Generate = Callable[[list[list[int]], list[int]], list[list[int]]]


def load(
    path: Path,
    dtype: str,
    threads: int,
    max_model_len: int,  # noqa: ARG001 - the cache is sized in pages
    options: dict[str, int],
) -> Generate:
    """Load the model and choose how it batches."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32 if dtype == "f32" else torch.bfloat16, attn_implementation="sdpa"
    ).eval()
    if options["cuda"]:
        model = model.to("cuda")
    return padded(model, options["padded"]) if options["padded"] else continuous(model, options)


def continuous(model: Any, options: dict[str, int]) -> Generate:
    """Return a function that runs all requests through one manager, which stays up between runs."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # 5.17 calls a page a block, and `benchmarks.gpu_engine` takes the release that is installed.
    names = (field.name for field in fields(ContinuousBatchingConfig))
    page: dict[str, Any] = {"page_size" if "page_size" in names else "block_size": options["page"]}
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_END, pad_token_id=PADDING),
        continuous_batching_config=ContinuousBatchingConfig(
            **page,
            num_blocks=options["pages"] or None,
            max_batch_tokens=options["tokens"],
            max_requests_per_batch=options["sequences"],
            use_cuda_graph=bool(options["cuda"]),
            use_async_batching=False,
        ),
    )
    manager.start()

    def results() -> Iterator[Any]:
        while True:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("the continuous batching thread has ended")
            if result is not None and result.error:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                yield result

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        ids = [
            manager.add_request(prompt, max_new_tokens=count, eos_token_id=NO_END)
            for prompt, count in zip(prompts, max_tokens, strict=True)
        ]
        finished = {result.request_id: result for result in islice(results(), len(ids))}
        return [list(finished[key].generated_tokens) for key in ids]

    return generate


def padded(model: Any, rows: int) -> Generate:
    """Return a function that runs left-padded batches of `rows`, longest prompts first.

    Each batch runs for its longest output.
    """
    import torch

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), max_tokens[i]), reverse=True)
        outputs: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            width = max(len(prompts[i]) for i in batch)
            count = max(max_tokens[i] for i in batch)
            ids = torch.tensor([[PADDING] * (width - len(prompts[i])) + prompts[i] for i in batch])
            mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in batch])
            with torch.inference_mode():
                generated = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=count,
                    min_new_tokens=count,
                    do_sample=False,
                    pad_token_id=PADDING,
                )
            for i, tokens in zip(batch, generated[:, width:].tolist(), strict=True):
                outputs[i] = tokens[: max_tokens[i]]
        return outputs

    return generate
