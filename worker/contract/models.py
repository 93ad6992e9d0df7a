"""Identify a model by its name and a fingerprint of its files, alike in the API and in workers."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.values.model_files import HEADS_FILE

DESCRIPTIONS = frozenset({".json", ".jinja", ".model"})
WEIGHTS = ".safetensors"
SAMPLES = 16
SAMPLE_BYTES = 64 << 10
QUANTIZED_DTYPES = frozenset({"int8", "fp8"})
PLAIN_FORMATS = frozenset({"float32", "float16", "bfloat16", "float64", "unknown"})
SHOWN_DIGITS = 8  # of a fingerprint, beside a name


@dataclass(frozen=True, slots=True)
class Model:
    """Identity of a model directory: two with the same fingerprint answer alike, whatever their names."""

    name: str
    fingerprint: str  # of weights, config, tokenizer and chat template; 32 hexadecimal digits
    tokenizer: str  # fingerprint of tokenizer and chat template: all that turns a prompt into tokens

    @property
    def label(self) -> str:
        """Return the name with the beginning of the fingerprint, as `demo@ab12cd34`."""
        return label(self.name, self.fingerprint)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A Model as a worker runs it. Results name it by `id`, which the store assigns."""

    model: Model
    weight_format: str  # of the checkpoint
    dtype: str  # of the engine's arithmetic
    id: int | None = None

    @property
    def fingerprint(self) -> str:
        """Return the model's fingerprint."""
        return self.model.fingerprint


def label(name: str, fingerprint: str) -> str:
    """Return a model's name with the beginning of its fingerprint."""
    return f"{name}@{fingerprint[:SHOWN_DIGITS]}"


def identify(directory: Path) -> Model:
    """Compute the identity of a model directory; raises OSError.

    Weights are too large to be read whole: the fingerprint takes each file's size, its header, and pieces
    spread over all of it. Training changes every piece. Medusa heads do not count, as no
    output depends on them.
    """
    files = sorted(path for path in directory.iterdir() if path.is_file())
    descriptions = [path for path in files if path.suffix in DESCRIPTIONS]
    digest = _digest_of(descriptions)
    for path in files:
        if path.suffix == WEIGHTS and path.name != HEADS_FILE:
            _add_weights(digest, path)
    of_text = (path for path in descriptions if path.name.startswith(("tokenizer", "chat_template")))
    return Model(directory.resolve().name, digest.hexdigest(), _digest_of(of_text).hexdigest())


def weight_format(directory: Path) -> str:
    """Return the weight format that a checkpoint's config.json names; raises OSError, ValueError."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text("utf-8"))
    section = config.get("quantization_config")
    if isinstance(section, dict):
        return str(section.get("format") or section.get("quant_method"))
    return str(config.get("dtype") or config.get("torch_dtype") or "unknown")


def quantization(weight_format: str, dtype: str) -> str | None:
    """Return how weights are quantized, by the engine or else in the checkpoint; None: they are not."""
    if dtype in QUANTIZED_DTYPES:
        return dtype
    return None if weight_format in PLAIN_FORMATS else weight_format


def _digest_of(paths: Iterable[Path]) -> "hashlib.blake2b":
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest


def _add_weights(digest: "hashlib.blake2b", path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}\0{size}".encode())
    with path.open("rb") as file:
        for piece in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * piece // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
