"""Reads a Hugging Face checkpoint: config.json and safetensors, with errors that name file and key."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from worker.engine.errors import CheckpointError, MissingTensorError, TensorShapeError
from worker.engine.layers.linear import Int8Linear, Linear, Projection
from worker.engine.layouts.layout import Layout
from worker.engine.layouts.registry import read_layout

T = TypeVar("T")

CPU = torch.device("cpu")


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object from a file; raises CheckpointError naming it."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(file, "", f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file, "", "is not a JSON object")
    return value


def read_key(file: Path, config: dict[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return one typed value of a config; a missing or null key gives the default, without one it raises."""
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(file, key, "is missing")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CheckpointError(file, key, f"should be {kind.__name__}, is {value!r}")
    return value


def read_eos_token_ids(directory: Path) -> frozenset[int]:
    """Return the end tokens of generation_config.json, or else of config.json; none is allowed."""
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        value = read_json(file).get("eos_token_id") if file.is_file() else None
        if isinstance(value, int):
            return frozenset((value,))
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            return frozenset(value)
        if value is not None:
            raise CheckpointError(file, "eos_token_id", f"should be an id or a list of ids, is {value!r}")
    return frozenset()


class Weights:
    """The tensors of a checkpoint, in one file or sharded behind an index. A context manager.

    With `is_int8`, what `linear` and `head` return is quantized; all else is in `dtype` on `device`. Weights
    that the checkpoint holds quantized are dequantized as they are taken.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        *,
        device: torch.device = CPU,
        is_int8: bool = False,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._is_int8 = is_int8
        # Of what passes between products: quantized ones give float32.
        self.activation_dtype = torch.float32 if is_int8 else dtype
        self._index = directory / "model.safetensors.index.json"
        self._files: dict[Path, Any] = {}
        if self._index.is_file():
            weight_map = read_json(self._index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise CheckpointError(self._index, "weight_map", "is missing")
            self._file_by_name = {name: directory / file for name, file in weight_map.items()}
        else:
            files = sorted(directory.glob("*.safetensors"))
            if not files:
                raise CheckpointError(directory, "", "has no *.safetensors file")
            self._index = files[0]
            self._file_by_name = {name: file for file in files for name in self._open(file).keys()}  # noqa: SIM118
        config = directory / "config.json"
        self._layout = read_layout(config, read_json(config)) if config.is_file() else None
        self.num_parameters = 0
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_by_name

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the engine's dtype; raises if it is missing or not of this shape.

        What is dequantized only to be quantized to int8 stays in float32.
        """
        module = name.removesuffix(".weight")
        dtype = self._dtype
        if self._layout is not None and module != name and self._layout.covers(self._file_by_name, module):
            tensor = self._dequantized(self._layout, module)
            if self._is_int8:
                dtype = tensor.dtype  # so that int8 levels come back as they were
        else:
            tensor = self._stored(name)
        if tuple(tensor.shape) != shape:
            raise TensorShapeError(
                self._file_by_name.get(name, self._index),
                name,
                f"has shape {list(tensor.shape)}, config.json implies {list(shape)}",
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                self._file_by_name[name], name, f"is {tensor.dtype}, and config.json names no quantization"
            )
        tensor = tensor.to(self._device, dtype)
        self.num_parameters += tensor.numel()
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def linear(
        self,
        names: list[str],
        rows: list[int],
        columns: int,
        *,
        has_bias: bool = False,
        is_exact: bool = False,
    ) -> Projection:
        """Return one product for the weights (and biases) of modules that read the same input, in order.

        `is_exact` keeps it from being quantized.
        """
        weight = self.stack([f"{name}.weight" for name in names], rows, columns)
        bias = self.stack([f"{name}.bias" for name in names], rows) if has_bias else None
        if is_exact or not self._is_int8:
            kept = self.activation_dtype
            return Linear(weight.to(kept), None if bias is None else bias.to(kept))
        self.num_bytes -= weight.numel() * weight.element_size()
        return self._quantized(weight, bias)

    def head(self, embedding: Tensor, *, is_tied: bool) -> Projection:
        """Return the product that makes logits: the embedding itself, or `lm_head` of the same shape."""
        if not is_tied:
            embedding = self.take("lm_head.weight", *embedding.shape)
        if not self._is_int8:
            return Linear(embedding)
        if not is_tied:
            self.num_bytes -= embedding.numel() * embedding.element_size()
        return self._quantized(embedding, None)

    def _dequantized(self, layout: Layout, module: str) -> Tensor:
        try:
            weight = layout.read(self._stored, module)
        except (ValueError, KeyError) as error:
            raise CheckpointError(self._index, module, f"cannot be dequantized: {error}") from error
        return weight if isinstance(weight, Tensor) else weight.dequantize()

    def _stored(self, name: str) -> Tensor:
        file = self._file_by_name.get(name)
        if file is None:
            raise MissingTensorError(self._index, name, "is missing")
        try:
            tensor: Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise MissingTensorError(file, name, f"cannot be read: {error}") from error
        return tensor

    def _quantized(self, weight: Tensor, bias: Tensor | None) -> Int8Linear:
        self.num_bytes += weight.numel() + 4 * weight.shape[0]
        return Int8Linear(weight, bias, dtype=self.activation_dtype)

    def stack(self, names: list[str], rows: list[int], *columns: int) -> Tensor:
        """Return tensors that share their last axes as one, in order."""
        return torch.cat([self.take(name, count, *columns) for name, count in zip(names, rows, strict=True)])

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(str(file), framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(file, "", f"cannot be read: {error}") from error
        return self._files[file]
