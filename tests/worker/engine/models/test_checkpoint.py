"""What is wrong with a checkpoint is said by file and key."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.quantization import quantize_int8
from tests.fixtures.generation import make_engine
from tests.fixtures.tiny_llama import edit_config, write_tiny_llama
from worker.engine.models import checkpoint as checkpoint_module
from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.quantized_linear import ScaledLinear
from worker.engine.requests.errors import (
    CheckpointError,
    MissingTensorError,
    TensorShapeError,
    UnsupportedModelError,
)

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path)


def _edit_weights(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "kind", "problem"),
    [
        ({"architectures": ["NoSuchModel"]}, UnsupportedModelError, "NoSuchModel"),
        ({"architectures": None}, CheckpointError, "architectures: is missing"),
        ({"hidden_size": None}, CheckpointError, "hidden_size: is missing"),
        ({"hidden_size": "wide"}, CheckpointError, "hidden_size: must be int"),
        ({"rms_norm_eps": 10**400}, CheckpointError, "rms_norm_eps: must be float"),
        ({"quantization_config": "gptq"}, UnsupportedModelError, "quantization_config: must be an object"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act: 'gelu' is not supported"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_key_value_heads: .* not a multiple of 3"),
        ({"num_attention_heads": 0}, CheckpointError, "num_attention_heads: must be from 1"),
        ({"num_hidden_layers": 10**12}, CheckpointError, "num_hidden_layers: must be from 1 to 10000"),
        ({"architectures": [["LlamaForCausalLM"]]}, UnsupportedModelError, "architectures"),
        (
            {"rope_parameters": {"rope_type": ["linear"], "rope_theta": 1e4}},
            UnsupportedModelError,
            "rope_type",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}},
            UnsupportedModelError,
            r"rope_parameters\.rope_type: 'yarn'",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "rope_theta": 1e4}},
            CheckpointError,
            "low_freq_factor: is missing",
        ),
    ],
    ids=str,
)
def test_config(
    checkpoint: Path, changes: dict[str, object], kind: type[CheckpointError], problem: str
) -> None:
    edit_config(checkpoint, **changes)
    with pytest.raises(kind, match=f"config\\.json: .*{problem}"):
        make_engine(checkpoint)


@pytest.mark.parametrize(
    ("config_class", "changes", "problem"),
    [
        ("Phi3Config", {"partial_rotary_factor": 0.75}, "partial_rotary_factor: only 1 is supported"),
        (
            "Phi3Config",
            {"rope_parameters": {"rope_type": "longrope"}},
            "rope_type: 'longrope' is not supported",
        ),
        ("Gemma2Config", {"hidden_activation": "gelu"}, "hidden_activation: 'gelu' is not supported"),
        (
            "Gemma2Config",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention: is not supported",
        ),
        ("Gemma2Config", {"layer_types": ["linear_attention"] * 2}, "layer_types: .* is not supported"),
        ("Gemma3TextConfig", {"final_logit_softcapping": 30.0}, "final_logit_softcapping: is not supported"),
        ("Qwen3MoeConfig", {"num_experts_per_tok": 9}, "num_experts_per_tok: is 9, but the model has 4"),
    ],
    ids=str,
)
def test_config_of_a_family(
    tmp_path: Path, config_class: str, changes: dict[str, object], problem: str
) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2} if config_class == "Qwen3MoeConfig" else {}
    write_tiny_llama(tmp_path, config_class=config_class, pad_token_id=1, **experts)
    edit_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=f"config\\.json: .*{problem}"):
        make_engine(tmp_path)


def test_missing_tensor(checkpoint: Path) -> None:
    _edit_weights(checkpoint, lambda tensors: tensors.pop(DOWN))
    with pytest.raises(MissingTensorError, match=rf"model\.safetensors: {DOWN}: is missing"):
        make_engine(checkpoint)


def test_wrong_shape(checkpoint: Path) -> None:
    _edit_weights(checkpoint, lambda tensors: tensors.update({DOWN: torch.zeros(2, 3)}))
    with pytest.raises(
        TensorShapeError, match=rf"{DOWN}: has shape \[2, 3\], but config.json implies \[48, 96\]"
    ):
        make_engine(checkpoint)


def test_quantized_tensor(checkpoint: Path) -> None:
    _edit_weights(checkpoint, lambda tensors: tensors.update({DOWN: torch.zeros(48, 96, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"config\.json has no quantization_config"):
        make_engine(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_and_broken_files(checkpoint: Path, name: str) -> None:
    (checkpoint / name).write_bytes(b"not this")
    with pytest.raises(CheckpointError, match=f"{name}: cannot be read"):
        make_engine(checkpoint)
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match="safetensors" if name.endswith("tensors") else name):
        make_engine(checkpoint)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        make_engine(tmp_path / "nowhere")


def test_end_tokens_of_the_wrong_kind(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": "stop"}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        make_engine(checkpoint)


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", {"a": 1}, None])
def test_an_index_names_files_beside_it_only(checkpoint: Path, file: object) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": file}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="must be in a file of the same directory"):
        make_engine(checkpoint)


def test_a_tokenizer_that_fails_on_a_character_is_refused(checkpoint: Path) -> None:
    file = checkpoint / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"] = None
    tokenizer["model"] |= {"unk_token": "<none>"}
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        make_engine(checkpoint)


def test_what_was_read_of_a_file_does_not_stay_in_memory(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_mapped() -> bool:
        return str(checkpoint / "model.safetensors") in Path("/proc/self/maps").read_text()

    monkeypatch.setattr(checkpoint_module, "MAX_BYTES_READ", 0)
    with Weights(checkpoint, torch.float32) as weights:
        tensor = weights.take(DOWN, 48, 96)
        expected = load_file(checkpoint / "model.safetensors")[DOWN]
        assert torch.equal(tensor, expected.float())
        del tensor, expected
        assert not is_mapped()
        assert weights.take(DOWN, 48, 96).shape == (48, 96)


def test_a_weight_is_quantized_as_it_is_stored(checkpoint: Path) -> None:
    """Rounded to bfloat16 first, its largest numbers, and so its scales, would be others."""
    down = load_file(checkpoint / "model.safetensors")[DOWN]
    assert down.dtype == torch.float32
    with Weights(checkpoint, torch.bfloat16, is_gpu=True, eight_bits="int8") as weights:
        product = weights.linear([DOWN.removesuffix(".weight")], [len(down)], down.shape[1])
    assert isinstance(product, ScaledLinear)
    assert torch.equal(product._weight.levels, quantize_int8(down).levels)
    assert torch.equal(product._weight.scales, quantize_int8(down).scales)
    assert not torch.equal(product._weight.scales, quantize_int8(down.bfloat16()).scales)
