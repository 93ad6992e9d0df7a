"""Breaks the arithmetic of one kernel at a time, and sees whether its test cases notice.

A copy of the kernels is changed in one place and the cases are run on it. Processes are forks of one that has
imported what is slow to import. This module itself imports no kernel: a fork must find those of its copy.
"""

import contextlib
import io
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("kernels", "tests/kernels")
LINKED = ("pyproject.toml", "worker")
# What ends a process that has read or written where nothing of its own is.
BAD_MEMORY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake: text that a source has exactly once, and what to put there."""

    name: str
    before: str
    after: str
    only: str = ""  # the cases that are to notice it, as pytest's -k; all when empty


@dataclass(frozen=True, slots=True)
class Table:
    """What can be broken in a source, and the file of tests that must notice."""

    source: str  # in kernels/
    tests: str  # in tests/kernels/
    mutations: tuple[Mutation, ...]
    runs_here: bool = True  # whether this processor can run the source: if not, no case can notice

    def text(self) -> str:
        """Return the source as it is."""
        return (ROOT / "kernels" / self.source).read_text(encoding="utf-8")

    def mutated(self, mutation: Mutation) -> str:
        """Return the source with a mistake in it; ValueError unless there is exactly one place for it."""
        text = self.text()
        if text.count(mutation.before) != 1:
            raise ValueError(
                f"{self.source}: {mutation.name}: {mutation.before!r} is there "
                f"{text.count(mutation.before)} times"
            )
        return text.replace(mutation.before, mutation.after)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the cases ended."""

    has_passed: bool
    disagrees: bool  # some case failed on what was computed or on what was read, and not for another reason
    output: str


def copy_tree(tree: Path) -> None:
    """Put kernels and their tests into a folder, beside links to what those need."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests" / "__init__.py").touch()
    for name in LINKED:
        (tree / name).symlink_to(ROOT / name)


def run_cases(tree: Path, tests: str, only: str) -> Outcome:
    """Run a file of tests in a tree until one fails. Only in a process that does nothing else."""
    import pytest

    os.chdir(tree)
    os.environ |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.split(".")[0] in {"kernels", "worker"}]:
        del sys.modules[name]
    options = {
        "--rootdir": str(tree),
        "--basetemp": str(tree / "tmp"),
        "-p": "no:cacheprovider",
        "-W": "ignore::RuntimeWarning",  # whether a number is wrong, not whether numpy warned as it was made
        "-k": only,
    }
    arguments = [f"tests/kernels/{tests}", "-x", "-q", *itertools.chain.from_iterable(options.items())]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(arguments)
    text = output.getvalue()
    failed = re.search(r"^E +(AssertionError|assert )", text, re.MULTILINE)
    return Outcome(status == 0, status == 1 and failed is not None, text)


def run_apart(tree: Path, tests: str, only: str) -> Outcome:
    """Run the cases in a process of their own. One that dies of bad memory has noticed too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["numba", "pytest", "torch", "triton"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(sender, tree, tests, only))
    process.start()
    sender.close()
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join()
        outcome = Outcome(False, -(process.exitcode or 0) in BAD_MEMORY, f"ended with {process.exitcode}")
    process.join()
    return outcome


def _send_outcome(sender: Connection, tree: Path, tests: str, only: str) -> None:
    sender.send(run_cases(tree, tests, only))
