"""Compiles CPU kernels with Numba, and keeps what was compiled."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

_Function = TypeVar("_Function", bound=Callable[..., Any])

# To a tensor's first element, inside a kernel. Not an array: Numba would count its references, and threads
# would wait for each other's counting.
Pointer = Any

# Sums may be reordered. Not "nnan" and "ninf": a NaN must come out as one.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "arcp"}}

# What no CPU kernel is made of: changing these must not compile the others again.
_NOT_COMPILED = {
    "ahead_of_time.py",
    "bench.py",
    "benchmarking.py",
    "builds.py",
    "cases.py",
    "crossover.py",
    "epilogue.py",
    "gemlite_rival.py",
    "gpu.py",
    "kernel.py",
    "reference.py",
    "testing.py",
    "tuning.py",
}


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call, without the interpreter's lock, and keep it on disk."""
    compiled: Any = numba.njit(nogil=True, cache=_FOLDER is not None, **_OPTIONS)(function)
    if _FOLDER is not None:
        lock = _FOLDER / f"{function.__module__}.{function.__qualname__}.lock"
        compiled.compile = _one_process_at_a_time(compiled.compile, lock)
    return cast("_Function", compiled)


def inlined(function: _Function) -> _Function:
    """Compile a function into each kernel that calls it."""
    compiled: Any = numba.njit(inline="always", **_OPTIONS)(function)
    return cast("_Function", compiled)


def _one_process_at_a_time(compile_: Callable[[Any], Any], path: Path) -> Callable[[Any], Any]:
    """Have processes that start together wait for the first one's code, rather than all compile the same.

    It also keeps Numba's index whole, in which two that write at once lose an entry.
    """

    def compile_alone(signature: Any) -> Any:
        # Numba's own lock comes first, as it does where a kernel compiles another that it calls.
        with global_compiler_lock, path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_(signature)

    return compile_alone


def _keep_compiled() -> Path | None:
    """Give Numba a folder for these very sources: it would notice a change of a kernel's own file only."""
    sources = sorted(path for path in Path(__file__).parent.rglob("*.py") if path.name not in _NOT_COMPILED)
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    for place in (Path(__file__).parent / "__pycache__", Path(tempfile.gettempdir())):
        folder = place / f"headrace-{os.getuid()}-{digest}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # What lies in it is run: it must be ours alone.
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK) and not folder.is_symlink():
            vars(numba.config)["CACHE_DIR"] = str(folder)
            return folder
    return None


_FOLDER = _keep_compiled()
