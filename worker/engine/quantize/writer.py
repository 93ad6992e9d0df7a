"""Writes a copy of a checkpoint with the weights of its layers quantized."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kernels.quantization import (
    Nf4Weight,
    QuantizedWeight,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_nf4,
)
from worker.engine.models.checkpoint import read_json
from worker.engine.models.layouts import bitsandbytes, compressed_tensors
from worker.engine.models.registry import read_architecture
from worker.engine.quantize.calibration import Moments
from worker.engine.quantize.compensation import quantize_fp8_compensated, quantize_int4_compensated
from worker.engine.requests.errors import CheckpointError

FORMATS = ("int8", "int4", "fp8", "nf4")
INDEX = "model.safetensors.index.json"


def quantize_checkpoint(
    model: Path,
    out: Path,
    format_: str,
    *,
    group_size: int = 64,
    moments: dict[str, Moments] | None = None,
) -> int:
    """Write `model`, quantized, to the new directory `out` and return the bytes of its tensors.

    Embeddings, norms, routers and the head stay as they are. With the `moments` of all modules, the rounding
    errors of int4 and fp8 are compensated. Raises CheckpointError when a weight does not fit the format, the
    model is quantized already or not supported by the Engine, or `out` is not an empty directory.
    """
    read_architecture(model)
    config_file = model / "config.json"
    config = read_json(config_file)
    if config.get("quantization_config") is not None:
        raise CheckpointError(
            config_file, "quantization_config", "is present: the model is already quantized"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(out, "", "is not an empty directory")
    quantize = _quantizer(format_, group_size, moments)
    out.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for file in sorted(model.glob("*.safetensors")):
        tensors = _quantized(file, quantize)
        save_file(tensors, out / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file.name)
        num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if (model / INDEX).is_file():
        index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
        _write_json(out / INDEX, index)
    section = (
        bitsandbytes.write_config()
        if format_ == "nf4"
        else compressed_tensors.write_config(format_, group_size if format_ == "int4" else None)
    )
    _write_json(out / "config.json", config | {"quantization_config": section})
    for file in model.iterdir():
        if file.suffix in {".json", ".jinja", ".model", ".txt"} and not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)
    return num_bytes


def _quantizer(
    format_: str, group_size: int, moments: dict[str, Moments] | None
) -> Callable[[str, Tensor], QuantizedWeight]:
    def found(module: str) -> Tensor | None:
        """Return a module's moments; None without a text, or for an expert that no token of it chose."""
        return moments[module].mean() if moments is not None and module in moments else None

    def to_int4(module: str, weight: Tensor) -> QuantizedWeight:
        inputs = found(module)
        if inputs is None:
            return quantize_int4(weight, group_size=group_size)
        return quantize_int4_compensated(weight, inputs, group_size=group_size)

    def to_fp8(module: str, weight: Tensor) -> QuantizedWeight:
        inputs = found(module)
        return quantize_fp8(weight) if inputs is None else quantize_fp8_compensated(weight, inputs)

    return {
        "int8": lambda _, weight: quantize_int8(weight),
        "int4": to_int4,
        "fp8": to_fp8,
        "nf4": lambda _, weight: quantize_nf4(weight, is_nested=True),
    }[format_]


def _quantized(file: Path, quantize: Callable[[str, Tensor], QuantizedWeight]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    with safe_open(str(file), framework="pt") as source, torch.inference_mode():
        for name in source.keys():  # noqa: SIM118  (it is no dictionary)
            tensor: Tensor = source.get_tensor(name)
            if not name.endswith("_proj.weight"):
                tensors[name] = tensor
                continue
            module = name.removesuffix(".weight")
            try:
                weight = quantize(module, tensor)
            except ValueError as error:
                raise CheckpointError(file, name, f"does not fit: {error}") from error
            if isinstance(weight, Nf4Weight):
                tensors |= bitsandbytes.write_tensors(module, weight)
            else:
                tensors |= compressed_tensors.write_tensors(module, weight)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
