"""As much of the Dockerfile and .dockerignore formats as ours use, read without Docker."""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from worker.up import ROOT

IGNORED = ROOT / ".dockerignore"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuation lines joined."""

    name: str
    value: str

    @property
    def words(self) -> list[str]:
        """The value's words, flags left out."""
        return shlex.split(re.sub(r"^(--\S+\s+)*", "", self.value))

    @property
    def exec_form(self) -> list[str]:
        """The command in brackets, which no shell splits and through which signals arrive."""
        return [str(word) for word in json.loads(self.value[self.value.index("[") :])]

    @property
    def flags(self) -> dict[str, str]:
        """`--name=value` before the words."""
        flags = re.match(r"(--\S+\s+)*", self.value)
        assert flags is not None
        return dict(flag[2:].split("=", 1) for flag in flags[0].split())


def read_dockerfile(path: Path) -> list[Instruction]:
    """Return a Dockerfile's instructions."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages(instructions: list[Instruction]) -> list[list[Instruction]]:
    """Cut a Dockerfile at each FROM; the arguments before the first are left out."""
    found: list[list[Instruction]] = []
    for instruction in instructions:
        if instruction.name == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def copies(stage: list[Instruction]) -> list[tuple[list[str], str]]:
    """Return (sources, destination) of each COPY from the build's context."""
    found = []
    for instruction in stage:
        if instruction.name == "COPY" and "from" not in instruction.flags:
            *sources, destination = instruction.words
            found.append((sources, destination))
    return found


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path, relative to the repository, out of the build."""
    parts = path.split("/")
    prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    ignored = False
    for line in IGNORED.read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        expression = _expression(pattern.removeprefix("!").strip("/"))
        if any(expression.fullmatch(prefix) for prefix in prefixes):
            ignored = not pattern.startswith("!")
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    translated = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
    return re.compile(translated)


def lay_out(stage: list[Instruction], app: Path) -> None:
    """Copy what a stage's COPY instructions bring from the repository to where /app would be."""
    for sources, destination in copies(stage):
        for source in sources:
            target = app / destination
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, target)
