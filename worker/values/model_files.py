"""Tells the files of a model's own weights from the one beside them that is no part of them."""

from pathlib import Path

# Medusa heads: they guess tokens, so what a model answers does not depend on them.
HEADS_FILE = "medusa.safetensors"


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a directory without Medusa heads, by name."""
    return sorted(file for file in directory.glob("*.safetensors") if file.name != HEADS_FILE)
