"""Reads a Hugging Face checkpoint, config.json and safetensors; its errors name the file and key."""

import json
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kernels.expert_linear import ExpertWeights
from kernels.quantization import QuantizedWeight, stack_weights
from worker.engine.models.layers.ends import Embedding, shared_embedding, table_embedding
from worker.engine.models.layers.linear import Projection
from worker.engine.models.layers.mlp import Gated
from worker.engine.models.layouts.layout import Layout
from worker.engine.models.layouts.registry import read_layout
from worker.engine.models.products import EightBits, Products
from worker.engine.requests.errors import CheckpointError, MissingTensorError, TensorShapeError
from worker.values.model_files import weight_files

T = TypeVar("T")

CPU = torch.device("cpu")
MAX_SIZE = 2**31 - 1
MAX_BYTES_READ = 64 << 20  # before files are opened anew


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
    """Return one typed value of a config, or the default if the key is missing or null.

    Raises CheckpointError for another type, and for a missing key without a default.
    """
    value = config.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(file, key, "is missing")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SIZE:
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CheckpointError(file, key, f"must be {kind.__name__}, not {value!r}")
    return value


def read_size(
    file: Path, config: dict[str, Any], key: str, default: int | None = None, *, most: int = MAX_SIZE
) -> int:
    """Return a count from a config, from 1 to `most`; raises CheckpointError as `read_key` does."""
    value = read_key(file, config, key, int, default)
    if not 1 <= value <= most:
        raise CheckpointError(file, key, f"must be from 1 to {most}, not {value}")
    return value


def read_eos_token_ids(directory: Path) -> frozenset[int]:
    """Return the end tokens of generation_config.json, or else of config.json; there may be none."""
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        value = read_json(file).get("eos_token_id") if file.is_file() else None
        if isinstance(value, int):
            return frozenset((value,))
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            return frozenset(value)
        if value is not None:
            raise CheckpointError(
                file, "eos_token_id", f"must be a token id or a list of token ids, not {value!r}"
            )
    return frozenset()


class Weights:
    """The tensors of a checkpoint, in one file or in several behind an index; a context manager.

    With `eight_bits`, the products of `linear`, `gated` and `ends` are quantized; all else is in `dtype` on
    `device`. Weights that are quantized in the checkpoint stay so if there is a product for them, and are
    dequantized otherwise. A product may keep weights that are stored in bfloat16 as they are, too.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        *,
        device: torch.device = CPU,
        is_gpu: bool = False,
        eight_bits: EightBits | None = None,
    ) -> None:
        self.dtype = dtype  # of what is not quantized
        self.device = device
        self._products = Products(dtype, is_gpu, device, eight_bits)
        self.activation_dtype = self._products.activation_dtype
        self.is_gpu = is_gpu
        self._index = directory / "model.safetensors.index.json"
        self._files: dict[Path, Any] = {}
        self._bytes_read = 0  # of open files
        if self._index.is_file():
            weight_map = read_json(self._index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise CheckpointError(self._index, "weight_map", "is missing")
            for name, file in weight_map.items():
                if not isinstance(file, str) or Path(file).name != file:
                    raise CheckpointError(
                        self._index, name, f"must be in a file of the same directory, not in {file!r}"
                    )
            self._file_by_name = {name: directory / file for name, file in weight_map.items()}
        else:
            files = weight_files(directory)
            if not files:
                raise CheckpointError(directory, "", "has no *.safetensors file")
            self._index = files[0]
            self._file_by_name = {name: file for file in files for name in self._open(file).keys()}  # noqa: SIM118
        config = directory / "config.json"
        self._layout = read_layout(config, read_json(config)) if config.is_file() else None
        self.num_parameters = 0
        self.num_bytes = 0
        self.formats: Counter[str] = Counter()  # the parameters of products by the format they are held in

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_by_name

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in the engine's dtype, dequantized if need be.

        A weight that is dequantized only to be quantized again stays in float32. Raises MissingTensorError,
        TensorShapeError if it has another shape, or CheckpointError if it holds no floats.
        """
        return self._taken(name, shape)

    def _taken(
        self, name: str, shape: tuple[int, ...], *, keeps: bool = False, rounds: bool = True
    ) -> Tensor:
        """Return a tensor as `take` does, but with `keeps` in bfloat16 if a product keeps it so.

        Without `rounds` it has the dtype that it is stored in.
        """
        module = name.removesuffix(".weight")
        dtype = self.dtype
        if self._layout is not None and module != name and self._layout.covers(self._file_by_name, module):
            weight = self._read(self._layout, module)
            tensor = weight if isinstance(weight, Tensor) else weight.dequantize()
            if self._products.eight_bits is not None:
                dtype = tensor.dtype  # not rounded, which restores int8 levels exactly
        else:
            tensor = self._stored(name)
            if not rounds:
                dtype = tensor.dtype
        self._check_shape(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point():
            raise CheckpointError(
                self._file_by_name[name],
                name,
                f"has dtype {tensor.dtype}, but config.json has no quantization_config",
            )
        if not (keeps and self._products.keeps(tensor)):
            tensor = tensor.to(self.device, dtype)
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
        """Return one product for the weights (and biases), in order, of modules that read the same input.

        With `is_exact` it is not quantized.
        """
        if is_exact:
            weight: Tensor | QuantizedWeight = self._stacked(names, rows, columns)
        else:
            weight = self._weight(names, rows, columns)
        return self._products.make(weight, self._bias(names, rows, has_bias=has_bias))

    def gated(
        self, names: list[str], rows: list[int], columns: int, activation: str, *, has_bias: bool = False
    ) -> Projection:
        """Return the product `activation(gate(x)) * up(x)`.

        `names` are the modules of gate and up, or the one module that holds both, gate first.
        """
        if self._products.is_gpu and activation == "silu":
            weight = self._weight(names, rows, columns)
            bias = self._bias(names, rows, has_bias=has_bias)
            if not isinstance(weight, Tensor):
                return self._products.make(weight, bias, is_gated=True)
            return Gated(self._products.make(weight, bias), activation)
        return Gated(self.linear(names, rows, columns, has_bias=has_bias), activation)

    def experts(
        self, experts: list[str], names: list[str], rows: int, columns: int, *, is_gated: bool = False
    ) -> ExpertWeights:
        """Return the modules `names`, of `rows` rows each, of all experts as one weight; for a GPU only."""
        modules = [f"{expert}.{name}" for expert in experts for name in names]
        weight = self._weight(modules, [rows] * len(modules), columns)
        return self._products.make_experts(weight, len(experts), is_gated=is_gated)

    def ends(self, vocab_size: int, hidden_size: int, *, is_tied: bool) -> tuple[Embedding, Projection]:
        """Return the embedding, and the product that makes logits: of `lm_head`, or tied to the embedding.

        int8 quantizes the product; fp8 does not. On a CPU, what is tied is one weight in memory.
        """
        shape = (vocab_size, hidden_size)
        table = self._taken("model.embed_tokens.weight", shape, keeps=True)
        if not is_tied and self._products.eight_bits is None:
            return table_embedding(table), self.linear(["lm_head"], [vocab_size], hidden_size)
        is_quantized = self._products.eight_bits == "int8"
        is_shared = is_tied and not self.is_gpu
        source = table if is_tied else self._taken("lm_head.weight", shape, rounds=not is_quantized)
        weight: Tensor | QuantizedWeight = source
        if is_quantized:
            weight = self._quantized(source)
            if is_shared or not is_tied:
                self.num_bytes -= source.nbytes
        else:
            self.formats[self._products.format_of(source)] += source.numel()
        del source
        if not is_shared:
            return table_embedding(table), self._products.make(weight, None)
        del table  # what was quantized goes before the product takes memory, too
        head = self._products.make(weight, None)
        return shared_embedding(head, weight), head

    def _weight(self, names: list[str], rows: list[int], columns: int) -> Tensor | QuantizedWeight:
        """Return the weight of a product: the stored levels if a product can run on them."""
        levels = self._levels(names, rows, columns)
        if levels is not None and self._products.take(levels):
            self.num_parameters += sum(rows) * columns
            self.num_bytes += levels.num_bytes
            self.formats[self._products.format_of(levels)] += sum(rows) * columns
            return levels
        is_quantized = self._products.eight_bits is not None
        weight = self._stacked(names, rows, columns, keeps=True, rounds=not is_quantized)
        if not is_quantized:
            self.formats[self._products.format_of(weight)] += weight.numel()
            return weight
        self.num_bytes -= weight.nbytes
        return self._quantized(weight)

    def _quantized(self, weight: Tensor) -> Tensor | QuantizedWeight:
        quantized = self._products.quantize(weight)
        self.formats[self._products.format_of(quantized)] += weight.numel()
        self.num_bytes += quantized.nbytes if isinstance(quantized, Tensor) else quantized.num_bytes
        return quantized

    def _levels(self, names: list[str], rows: list[int], columns: int) -> QuantizedWeight | None:
        """Return the stored levels of modules as one weight; None if any of them is stored otherwise."""
        layout = self._layout
        if layout is None or not all(layout.covers(self._file_by_name, name) for name in names):
            return None
        weights = [self._read(layout, name) for name in names]
        for name, weight, count in zip(names, weights, rows, strict=True):
            self._check_shape(f"{name}.weight", tuple(weight.shape), (count, columns))
        quantized = [weight for weight in weights if not isinstance(weight, Tensor)]
        return stack_weights(quantized) if len(quantized) == len(weights) else None

    def _read(self, layout: Layout, module: str) -> Tensor | QuantizedWeight:
        try:
            return layout.read(self._stored, module)
        except (ValueError, KeyError) as error:
            raise CheckpointError(self._index, module, f"cannot be dequantized: {error}") from error

    def _check_shape(self, name: str, found: tuple[int, ...], implied: tuple[int, ...]) -> None:
        if found != implied:
            raise TensorShapeError(
                self._file_by_name.get(name, self._index),
                name,
                f"has shape {list(found)}, but config.json implies {list(implied)}",
            )

    def _bias(self, names: list[str], rows: list[int], *, has_bias: bool) -> Tensor | None:
        return self.stack([f"{name}.bias" for name in names], rows) if has_bias else None

    def _stacked(
        self, names: list[str], rows: list[int], columns: int, *, keeps: bool = False, rounds: bool = True
    ) -> Tensor:
        """Return weights as one; if only some of them are kept in bfloat16, none is."""
        return torch.cat(
            [
                self._taken(f"{name}.weight", (count, columns), keeps=keeps, rounds=rounds)
                for name, count in zip(names, rows, strict=True)
            ]
        )

    def _stored(self, name: str) -> Tensor:
        file = self._file_by_name.get(name)
        if file is None:
            raise MissingTensorError(self._index, name, "is missing")
        try:
            tensor: Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise MissingTensorError(file, name, f"cannot be read: {error}") from error
        # What was read of an open file stays in memory. It goes with the file and the last of its tensors.
        self._bytes_read += tensor.nbytes
        if self._bytes_read > MAX_BYTES_READ:
            self._files.clear()
            self._bytes_read = 0
        return tensor

    def stack(self, names: list[str], rows: list[int], *columns: int) -> Tensor:
        """Return tensors with equal last axes as one tensor, in order."""
        return torch.cat([self.take(name, count, *columns) for name, count in zip(names, rows, strict=True)])

    def _open(self, file: Path) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(str(file), framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(file, "", f"cannot be read: {error}") from error
        return self._files[file]
