"""Compiles CPU kernels with Numba, and keeps what was compiled."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

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
    "builds.py",
    "cases.py",
    "gpu.py",
    "kernel.py",
    "reference.py",
}


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call, without the interpreter's lock, and keep it on disk."""
    compiled: Any = numba.njit(nogil=True, cache=_IS_KEPT, **_OPTIONS)(function)
    return cast("_Function", compiled)


def inlined(function: _Function) -> _Function:
    """Compile a function into each kernel that calls it."""
    compiled: Any = numba.njit(inline="always", **_OPTIONS)(function)
    return cast("_Function", compiled)


def _keep_compiled() -> bool:
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
            return True
    return False


_IS_KEPT = _keep_compiled()
