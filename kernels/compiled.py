"""Compiles CPU kernels with Numba and caches the compiled code on disk."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite.binding import Linkage
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Inside a kernel, a pointer to a tensor's first element. With arrays, Numba would count references, and
# threads would wait for each other's counting.
Pointer = Any

# Sums may be reordered. "nnan" and "ninf" are left out so that a NaN stays a NaN.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz", "arcp"}}

# What was compiled for calls by its address; the code goes when it does.
_ENTRIES: list[Any] = []

# A module that holds code for CPU kernels imports its decorators from here, and so declares itself.
_DECLARATION = b"from kernels.compiled import "


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call and cache it on disk; it runs without the interpreter's lock."""
    compiled: Any = numba.njit(nogil=True, cache=_FOLDER is not None, **_OPTIONS)(function)
    if _FOLDER is not None:
        lock = _FOLDER / f"{function.__module__}.{function.__qualname__}.lock"
        compiled.compile = _one_process_at_a_time(compiled.compile, lock)
    return cast("_Function", compiled)


def inlined(function: _Function) -> _Function:
    """Inline a function into each kernel that calls it."""
    compiled: Any = numba.njit(inline="always", **_OPTIONS)(function)
    return cast("_Function", compiled)


def entry(function: Callable[[int], None]) -> int:
    """Compile a function of an address; return its own, by which kernels call it (`simd.call_at`).

    It is for code that few processes need: a kernel that calls another one by its name compiles that too. It
    is cached on disk as kernels are, unless it has variables of a function around it.
    """
    signature = numba.types.void(numba.types.int64)

    def compile_(_signature: Any) -> Any:
        return numba.cfunc(signature, cache=_FOLDER is not None, **_OPTIONS)(function)

    if _FOLDER is None:
        _ENTRIES.append(compile_(signature))
    else:
        lock = _FOLDER / f"{function.__module__}.{function.__qualname__}.lock"
        _ENTRIES.append(_one_process_at_a_time(compile_, lock)(signature))
    address: int = _ENTRIES[-1].address
    return address


def has_feature(name: str) -> bool:
    """Return whether kernels are compiled for a CPU with a feature, by LLVM's name for it."""
    features: str = cpu_target.target_context.codegen()._tm_features  # noqa: SLF001  (Numba is pinned)
    return f"+{name}" in features.split(",")


def _one_process_at_a_time(compile_: Callable[[Any], Any], path: Path) -> Callable[[Any], Any]:
    """Wrap a compiler so that processes that start together compile each kernel only once.

    It also protects Numba's index, which loses an entry when two processes write it at once.
    """

    def compile_alone(signature: Any) -> Any:
        # Take Numba's own lock first, in the same order as a kernel that compiles another one that it calls.
        with global_compiler_lock, path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_(signature)

    return compile_alone


def sources() -> list[Path]:
    """Return the files whose code gets into CPU kernels: a change to one of them recompiles all kernels."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return [file for file in files if _DECLARATION in file.read_bytes()]


def _keep_own_copies() -> None:
    """Have each kernel run its own copies of the kernels that it calls.

    A copy is optimised once more with its caller, so sums may get another order than in the called kernel
    itself. By Numba's names, the loader would take whichever it has seen first: the kernel's own code where
    this process has just compiled it, the copy where the caller comes from the disk.
    """
    optimize = CPUCodeLibrary._optimize_final_module  # noqa: SLF001  (Numba is pinned)

    def optimize_copies(library: CPUCodeLibrary) -> None:
        for function in library._final_module.functions:  # noqa: SLF001
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = "internal"
        optimize(library)

    CPUCodeLibrary._optimize_final_module = optimize_copies  # type: ignore[method-assign]  # noqa: SLF001


def _keep_compiled() -> Path | None:
    """Give Numba a cache folder for exactly these sources; return it, or None if there is none.

    Numba by itself notices only a change in a kernel's own file.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources())).hexdigest()[:16]
    for place in (Path(__file__).parent / "__pycache__", Path(tempfile.gettempdir())):
        folder = place / f"headrace-{os.getuid()}-{digest}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Code in this folder is executed, so nobody else may own it.
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK) and not folder.is_symlink():
            vars(numba.config)["CACHE_DIR"] = str(folder)
            return folder
    return None


_keep_own_copies()
_FOLDER = _keep_compiled()
