#!/usr/bin/env python
"""Prints what an image installs: pyproject.toml's dependencies and those of the extras named.

`python docker/requirements.py [EXTRA...]`. So the pins are written once, and an image installs them in a
layer that a change of code leaves alone.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the requirements of a project and some of its extras; raises KeyError for an unknown extra."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
