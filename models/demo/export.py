"""Writes a trained model as a Hugging Face checkpoint, with its held-out text and its metrics."""

import json
from pathlib import Path
from typing import Any

import torch
from corpus import BOS, EOS, Corpus, token_id
from dialogue.template import CHAT_TEMPLATE
from heldout import perplexity
from model import Llama
from safetensors.torch import save_file
from tokenizers import Tokenizer

HELDOUT_WINDOW = 1024


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export(
    out: Path, model: Llama, tokenizer: Tokenizer, corpus: Corpus, run: dict[str, Any]
) -> dict[str, Any]:
    """Write the checkpoint, `heldout.txt` and `metrics.json` to the folder `out`; return the metrics."""
    out.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    bos, eos = token_id(tokenizer, BOS), token_id(tokenizer, EOS)
    weights = {
        f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    _write(
        out / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": shape.max_positions,
            "hidden_act": "silu",
            "rms_norm_eps": shape.rms_norm_eps,
            "rope_theta": shape.rope_theta,
            "rope_scaling": None,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
        },
    )
    _write(
        out / "generation_config.json",
        {"bos_token_id": bos, "eos_token_id": eos, "do_sample": True, "temperature": 0.7, "top_p": 0.95},
    )
    _write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "model_max_length": shape.max_positions,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (out / "heldout.txt").write_text(corpus.heldout, encoding="utf-8")
    stored = Llama(shape)
    stored.load_state_dict({name.removeprefix("model."): t.float() for name, t in weights.items()})
    metrics = {
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        **run,
        "heldout": perplexity(stored, tokenizer, corpus.heldout, window=HELDOUT_WINDOW),
        "heldout_first_4096": perplexity(
            stored, tokenizer, corpus.heldout, window=HELDOUT_WINDOW, max_tokens=4096
        ),
        "heldout_sources": corpus.heldout_names,
    }
    _write(out / "metrics.json", metrics)
    return metrics
