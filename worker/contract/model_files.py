"""Say what keeps a model directory from being served, from its files alone: no engine, no torch."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

WANTED = "Headrace serves a Hugging Face directory with config.json, *.safetensors and tokenizer.json"
AGAIN = "copy it again from where the model comes from"
INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = (".gguf", ".bin", ".pt", ".pth")
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


def problem_of(directory: Path) -> str | None:
    """Return what is wrong with a model directory and what to do; None if its files are there and whole."""
    try:
        return _first(directory, (_no_directory, _no_weights, _missing_file, _broken_file, _broken_weights))
    except OSError as error:
        return f"{error.filename or directory} cannot be read: {error.strerror}"


def _first(directory: Path, checks: Iterable[Callable[[Path], str | None]]) -> str | None:
    return next((problem for check in checks if (problem := check(directory))), None)


def _no_directory(directory: Path) -> str | None:
    if not directory.exists():
        return f"there is no directory {directory}"
    return None if directory.is_dir() else f"{directory} is a file: {WANTED}"


def _no_weights(directory: Path) -> str | None:
    if (directory / INDEX).exists() or any(directory.glob("*.safetensors")):
        return None
    others = sorted(path.name for path in directory.iterdir() if path.suffix in OTHER_WEIGHTS)
    return f"{directory} has no *.safetensors{f' but {others[0]}' if others else ''}: {WANTED}"


def _missing_file(directory: Path) -> str | None:
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).exists():
            return f"{directory} has no {name}: {WANTED}"
    return None


def _broken_file(directory: Path) -> str | None:
    for name in ("config.json", "tokenizer.json"):
        if _read_object(directory / name) is None:
            return f"{directory / name} is no JSON object: {AGAIN}"
    return None


def _broken_weights(directory: Path) -> str | None:
    index = directory / INDEX
    if not index.exists():
        files = sorted(directory.glob("*.safetensors"))
    else:
        weight_map = (_read_object(index) or {}).get("weight_map")
        if not isinstance(weight_map, dict):
            return f"{index} has no weight_map: {AGAIN}"
        files = sorted({directory / str(name) for name in weight_map.values()})
    for file in files:
        if not file.exists():
            return f"{file} is missing, which {INDEX} names: {AGAIN}"
        if not _is_whole(file):
            return f"{file} is cut off or damaged: {AGAIN}"
    return None


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_whole(weights: Path) -> bool:
    """Return whether a safetensors file is as long as its header says.

    The format: 8 bytes with the size of the header, a JSON header with each tensor's offsets, the tensors.
    """
    with weights.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            return False
        try:
            header = json.loads(file.read(header_bytes))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            return bool(weights.stat().st_size == 8 + header_bytes + max(ends, default=0))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
