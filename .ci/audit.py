#!/usr/bin/env python
"""What can be audited without an advisory database: `python .ci/audit.py` in the environment to be judged.

Compares every installed distribution with its pin, and its files with the digests that its wheel recorded.
The status is 1 if anything differs.
"""

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackagePath, distributions
from pathlib import Path

PINS = Path(__file__).with_name("constraints.txt")
# Ours, what makes an environment, and what each machine has its own build of.
NOT_PINNED = {"headrace", "pip", "setuptools", "torch", "triton"}


def normal(name: str) -> str:
    """Return a distribution's name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(lines: Iterator[str]) -> dict[str, str]:
    """Return version by name."""
    pairs = (line.strip().partition("==") for line in lines if line.strip() and not line.startswith("#"))
    return {normal(name): version for name, _, version in pairs}


def is_intact(distribution: Distribution, file: PackagePath) -> bool:
    """Whether a file has the digest that was recorded; what has none cannot be judged."""
    if file.hash is None:
        return True
    try:
        data = Path(str(distribution.locate_file(file))).read_bytes()
    except OSError:
        return False
    digest = hashlib.new(file.hash.mode, data).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value


def audit(installed: Iterator[Distribution], pins: dict[str, str]) -> tuple[list[str], int, int]:
    """Return what is wrong, and how many distributions and files were looked at."""
    wrong, names, num_files = [], set(), 0
    for one in installed:
        name = normal(one.metadata["Name"])
        if name in names:  # found twice on the path: the first is the one that is imported
            continue
        names.add(name)
        if name not in NOT_PINNED and pins.get(name) != one.version:
            wrong.append(f"{name}: {one.version} is installed, {pins.get(name, 'nothing')} is pinned")
        hashed = [file for file in one.files or () if file.hash is not None]
        num_files += len(hashed)
        wrong += [f"{name}: {file} is not as it was installed" for file in hashed if not is_intact(one, file)]
    return wrong, len(names), num_files


def main() -> int:
    """Print what is wrong, and what was and was not checked."""
    wrong, num_distributions, num_files = audit(distributions(), read_pins(iter(PINS.open())))
    sys.stdout.writelines(f"{what}\n" for what in wrong)
    sys.stdout.write(
        f"{num_distributions} distributions, {num_files} files with a recorded digest: "
        f"{len(wrong)} findings; known vulnerabilities were not looked up\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
