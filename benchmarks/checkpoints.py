"""Writes Llama checkpoints with random weights in the Hugging Face layout, for timings only.

Speed does not depend on the values.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|padding|>")  # ids 0, 1, 2
VOCAB_SIZE = 8192
MAX_POSITIONS = 2048
WEIGHT_STD = 0.02
# Narrow random models give nearly flat logits. A wider head gives the most likely token a margin, so that
# engines of differing precision can be compared token by token.
HEAD_STD = 0.16


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """The dimensions of a checkpoint, by the names of its config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 64


SIZES = {
    "small": LlamaSize(384, 8, 6, 2, 1536),
    "medium": LlamaSize(1024, 20, 16, 4, 2816),
}
LLAMA_8B = LlamaSize(4096, 32, 32, 8, 14336, head_dim=128)
LLAMA_8B_VOCAB_SIZE = 128_256


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return a byte-level BPE of exactly `vocab_size` tokens; raise ValueError if the texts give fewer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, not vocab_size={vocab_size}")
    return tokenizer


def weight_shapes(size: LlamaSize, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every weight."""
    hidden = size.hidden_size
    queries, keys = size.num_attention_heads * size.head_dim, size.num_key_value_heads * size.head_dim
    yield "model.embed_tokens.weight", (vocab_size, hidden)
    for index in range(size.num_hidden_layers):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (size.intermediate_size, hidden)
        yield f"{layer}.mlp.up_proj.weight", (size.intermediate_size, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, size.intermediate_size)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab_size, hidden)


def random_weights(size: LlamaSize, vocab_size: int, seed: int) -> dict[str, torch.Tensor]:
    """Return bfloat16 weights: norms are ones, the rest is normal; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(size, vocab_size):
        std = HEAD_STD if name == "lm_head.weight" else WEIGHT_STD
        drawn = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * std
        weights[name] = drawn.to(torch.bfloat16)
    # A special token is never the most likely one, so that no engine ends a request early.
    weights["lm_head.weight"][: len(SPECIAL_TOKENS)] = 0
    return weights


def write_checkpoint(
    directory: Path, size: LlamaSize, tokenizer: Tokenizer, seed: int = 1, *, vocab_size: int | None = None
) -> None:
    """Write config, weights and tokenizer so that this engine and every peer can read them.

    `vocab_size` may be larger than the tokenizer's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = vocab_size or tokenizer.get_vocab_size()
    weights = random_weights(size, vocab_size, seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    begin, end, padding = range(len(SPECIAL_TOKENS))
    ends = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": padding}
    theta = 10000.0
    config = asdict(size) | ends
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "max_position_embeddings": MAX_POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        # Older and newer readers expect the same two facts under different names.
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }
    tokens = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=True))
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", ends | {"do_sample": False})
    write_json(
        directory / "tokenizer_config.json",
        tokens | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_POSITIONS},
    )
    tokenizer.save(str(directory / "tokenizer.json"))


def write_json(file: Path, value: object) -> None:
    """Write indented JSON."""
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
