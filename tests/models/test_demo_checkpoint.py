"""The committed demo checkpoint is whole, portable, and as good as its metrics say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
CHECKPOINT = (
    "config.json",
    "generation_config.json",
    "heldout.txt",
    "metrics.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def _read(name: str) -> dict:
    return json.loads((DEMO / name).read_text(encoding="utf-8"))


def test_files_exist_and_are_small() -> None:
    assert all((DEMO / name).is_file() for name in CHECKPOINT)
    assert sum(path.stat().st_size for path in DEMO.iterdir() if path.is_file()) <= 25_000_000


def test_no_file_names_a_machine() -> None:
    place = re.compile(
        rb"/(root|home|work|Users)/[a-z]|\.pyenv|site-packages/[a-z]|https?://(localhost|127\.)"
    )
    for path in (DEMO / name for name in (*CHECKPOINT, "README.md", "train.py", "corpus.py")):
        if path.name != "heldout.txt":
            assert not place.search(path.read_bytes()), path.name


@pytest.mark.parametrize(
    "text", ["def naïve(été):\n\treturn '→ 🐍'\n", "x = 1_000\n\n\nclass A:\n    pass\n", "  日本語  "]
)
def test_tokenizer_round_trips(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    encoding = tokenizer.encode(text)
    assert encoding.ids[0] == tokenizer.token_to_id("<|bos|>")
    assert tokenizer.token_to_id("<|eos|>") not in encoding.ids
    assert tokenizer.decode(encoding.ids) == text


def test_special_tokens_match_the_config() -> None:
    tokenizer, config, generation = (
        Tokenizer.from_file(str(DEMO / "tokenizer.json")),
        _read("config.json"),
        _read("generation_config.json"),
    )
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    for name, token in (("bos_token_id", "<|bos|>"), ("eos_token_id", "<|eos|>")):
        assert config[name] == generation[name] == tokenizer.token_to_id(token)


def test_config_matches_the_tensors() -> None:
    config = _read("config.json")
    hidden, ff = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.q_proj": [q_size, hidden],
        "self_attn.k_proj": [kv_size, hidden],
        "self_attn.v_proj": [kv_size, hidden],
        "self_attn.o_proj": [hidden, q_size],
        "mlp.gate_proj": [ff, hidden],
        "mlp.up_proj": [ff, hidden],
        "mlp.down_proj": [hidden, ff],
    }
    expected = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for index in range(config["num_hidden_layers"]):
        expected |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    with safe_open(DEMO / "model.safetensors", framework="numpy") as weights:
        found = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
        assert {name: tensor.get_shape() for name, tensor in found.items()} == expected
        assert {tensor.get_dtype() for tensor in found.values()} == {"BF16"}
    assert config["torch_dtype"] == "bfloat16"
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] >= 1024


def test_perplexity_is_what_the_metrics_say() -> None:
    stated = _read("metrics.json")["heldout_first_4096"]
    command = [
        sys.executable,
        str(DEMO / "heldout.py"),
        "--max-tokens",
        "4096",
        "--window",
        str(stated["window"]),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    scored = json.loads(done.stdout[done.stdout.index("{") :])
    assert scored["tokens"] == stated["tokens"] == 4096
    assert scored["bytes"] == stated["bytes"]
    assert scored["nll_per_token"] == pytest.approx(stated["nll_per_token"], abs=2e-3)


def test_readme_quotes_the_metrics() -> None:
    readme, heldout = (DEMO / "README.md").read_text(encoding="utf-8"), _read("metrics.json")["heldout"]
    assert f"{heldout['perplexity']:.2f}" in readme
    assert f"{heldout['bits_per_byte']:.3f}" in readme
