"""Writes a copy of a checkpoint with the weights of its layers in another format."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kernels.quantization import Nf4Weight
from worker.engine.models.checkpoint import read_json
from worker.engine.models.layouts import bitsandbytes, compressed_tensors
from worker.engine.models.layouts.compressed_tensors import Group
from worker.engine.models.registry import read_architecture
from worker.engine.quantize.calibration import Moments
from worker.engine.quantize.formats import WeightFormat
from worker.engine.requests.errors import CheckpointError
from worker.values.model_files import HEADS_FILE, weight_files

FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
INDEX = "model.safetensors.index.json"
WEIGHT = "_proj.weight"  # how the names of the tensors end that are quantized

# Returns the tensors to store in place of one, from its file and name; raises ValueError if it does not fit.
Convert = Callable[[str, Tensor], dict[str, Tensor]]


def quantize_checkpoint(
    model: Path,
    out: Path,
    formats: WeightFormat | Mapping[str, WeightFormat],
    *,
    moments: Mapping[str, Moments] | None = None,
    input_scales: Mapping[str, float] | None = None,
) -> int:
    """Write `model`, quantized, to the new directory `out` and return the bytes of its tensors.

    `formats` is that of all modules, or those of some by name (int8, int4 and fp8); the others stay as they
    are, and so do embeddings, norms, routers and the head. With the `moments` of all modules, the rounding
    errors of int4 and fp8 are compensated. With `input_scales`, activations have these in int8, whatever the
    token. Raises CheckpointError as `check` does, and when a weight does not fit its format.
    """
    found: dict[str, WeightFormat | None] = {}

    def convert(name: str, tensor: Tensor) -> dict[str, Tensor]:
        module = name.removesuffix(".weight")
        if not name.endswith(WEIGHT):
            return {name: tensor}
        format_ = found[module] = formats if isinstance(formats, WeightFormat) else formats.get(module)
        if format_ is None:
            return {name: tensor}
        # An expert that no token of the text chose has no moments.
        known = None if moments is None else moments.get(module)
        weight = format_.quantize(tensor, None if known is None else known.mean())
        if isinstance(weight, Nf4Weight):
            return bitsandbytes.write_tensors(module, weight)
        return compressed_tensors.write_tensors(module, weight) | _input_scale(module, input_scales)

    def changes(_: dict[str, Any]) -> dict[str, Any]:
        if isinstance(formats, WeightFormat):
            if formats.kind == "nf4":
                return {"quantization_config": bitsandbytes.write_config()}
            every = Group(formats.kind, formats.group_size, has_input_scales=input_scales is not None)
            return {"quantization_config": compressed_tensors.write_config([every])}
        groups = [
            Group(one.kind, one.group_size, sorted(name for name, other in found.items() if other == one))
            for one in sorted({one for one in found.values() if one is not None})
        ]
        if not groups:
            return {}
        ignored = sorted(name for name, one in found.items() if one is None)
        return {"quantization_config": compressed_tensors.write_config(groups, ignored)}

    return _write(model, out, convert, changes)


def cast_checkpoint(model: Path, out: Path, dtype: str) -> int:
    """Write `model` with all floats in `dtype`, of FLOATS, to the new directory `out`; return its bytes.

    Raises CheckpointError as `check` does, and for a value that is too large for the dtype.
    """

    def convert(name: str, tensor: Tensor) -> dict[str, Tensor]:
        if not tensor.is_floating_point():
            return {name: tensor}
        found = tensor.to(FLOATS[dtype])
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"{dtype}: a value of {tensor.abs().max().item():g} is too large")
        return {name: found}

    def changes(config: dict[str, Any]) -> dict[str, Any]:
        key = "dtype" if "dtype" in config else "torch_dtype"  # the newer name, and the older
        return {key: str(FLOATS[dtype]).removeprefix("torch.")}

    return _write(model, out, convert, changes)


def check(model: Path, out: Path) -> dict[str, Any]:
    """Return the model's config.

    Raises CheckpointError if the model is quantized already or not supported by the Engine, or `out` is not
    an empty directory.
    """
    read_architecture(model)
    file = model / "config.json"
    config = read_json(file)
    if config.get("quantization_config") is not None:
        raise CheckpointError(file, "quantization_config", "is present: the model is already quantized")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(out, "", "is not an empty directory")
    return config


def num_bytes_of(model: Path) -> int:
    """Return the bytes of a checkpoint's tensors, without Medusa heads."""
    num_bytes = 0
    for file in weight_files(model):
        with safe_open(str(file), framework="pt") as source:
            num_bytes += sum(source.get_tensor(name).nbytes for name in source.keys())  # noqa: SIM118
    return num_bytes


def _input_scale(module: str, scales: Mapping[str, float] | None) -> dict[str, Tensor]:
    if scales is None:
        return {}
    if module not in scales:
        raise ValueError("no token of the calibration text reached it, so the range of its inputs is unknown")
    return {f"{module}.input_scale": torch.tensor([scales[module]])}


def _write(
    model: Path, out: Path, convert: Convert, changes: Callable[[dict[str, Any]], dict[str, Any]]
) -> int:
    """Write a checkpoint with its tensors converted, then its config changed; return the bytes of tensors."""
    config = check(model, out)
    out.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for file in weight_files(model):
        tensors = _converted(file, convert)
        save_file(tensors, out / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file.name)
        num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if (model / INDEX).is_file():
        index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
        _write_json(out / INDEX, index)
    _write_json(out / "config.json", config | changes(config))
    for file in model.iterdir():
        is_kept = file.suffix in {".json", ".jinja", ".model", ".txt"} or file.name == HEADS_FILE
        if is_kept and not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)
    return num_bytes


def _converted(file: Path, convert: Convert) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    with safe_open(str(file), framework="pt") as source, torch.inference_mode():
        for name in source.keys():  # noqa: SIM118  (it is no dictionary)
            try:
                tensors |= convert(name, source.get_tensor(name))
            except ValueError as error:
                raise CheckpointError(file, name, f"does not fit: {error}") from error
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
