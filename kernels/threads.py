"""Runs CPU kernels on torch's own OpenMP threads.

Numba's threads would be a second pool, and every operator would have to wake one of the two.
"""

import ctypes
import logging
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as untyped_intrinsic

from kernels.compiled import inlined

logger = logging.getLogger(__name__)

# Compiled code calls the decorated function without its first parameter.
intrinsic: Any = untyped_intrinsic

# With fewer elements, waking another thread costs more than it saves; estimated from timings on 2 cores.
_ELEMENTS_WORTH_A_THREAD = 1 << 15


def num_threads(num_elements: int | None = None) -> int:
    """Return the number of threads of an operator: torch's setting, or 1 for little work."""
    if not _HAS_OPENMP or (num_elements is not None and num_elements < _ELEMENTS_WORTH_A_THREAD):
        return 1
    return torch.get_num_threads()


@inlined
def share(count: int, part: int, num_parts: int) -> tuple[int, int]:
    """Return the first and the end row of one part of `count` rows."""
    return part * count // num_parts, (part + 1) * count // num_parts


@intrinsic
def fork(context: Any, function: Any, num_parts: Any, arguments: Any) -> Any:
    """Call `function(part, num_parts, *arguments)` for every part on torch's OpenMP threads."""
    index = types.intp
    inner = function.get_call_type(context, (index, index, *arguments.types), {})

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, parts, packed = values
        items = cgutils.unpack_tuple(builder, packed)
        compiled = function.dispatcher.overloads[inner.args]
        context.active_code_library.add_linking_library(compiled.library)
        frame_type = ir.LiteralStructType([parts.type, *(item.type for item in items)])
        frame = cgutils.alloca_once(builder, frame_type)
        for position, item in enumerate((parts, *items)):
            builder.store(item, cgutils.gep_inbounds(builder, frame, 0, position))
        outlined = _outline(context, builder.module, compiled, inner, frame_type)
        start = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [outlined.type, _POINTER, _I32, _I32]),
            "GOMP_parallel",
        )
        count = builder.trunc(parts, _I32)
        builder.call(start, [outlined, builder.bitcast(frame, _POINTER), count, ir.Constant(_I32, 0)])
        return context.get_dummy_value()

    return types.void(function, index, arguments), generate


@intrinsic
def team_size(_context: Any) -> Any:
    """Return the number of threads that OpenMP has started for this call of `fork`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sext(_call(builder, _I32, "omp_get_num_threads"), _I64)

    return types.intp(), generate


@intrinsic
def wait_for_team(_context: Any) -> Any:
    """Wait until all threads of this call of `fork` have come here; there must be one part a thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, ir.VoidType(), "GOMP_barrier")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def take_next(_context: Any, counters: Any, index: Any) -> Any:
    """Return a counter and raise it by one; no two threads get the same number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "monotonic")

    return types.int64(counters, types.intp), generate


_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def _outline(context: Any, module: Any, compiled: Any, inner: Any, frame_type: Any) -> Any:
    """Return the function that OpenMP calls on every thread of the team."""
    function = ir.Function(
        module, ir.FunctionType(ir.VoidType(), [_POINTER]), module.get_unique_name("forked")
    )
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    frame = builder.bitcast(function.args[0], frame_type.as_pointer())
    parts, *items = (
        builder.load(cgutils.gep_inbounds(builder, frame, 0, position))
        for position in range(len(frame_type.elements))
    )
    number, team = (
        builder.sext(_call(builder, _I32, name), _I64)
        for name in ("omp_get_thread_num", "omp_get_num_threads")
    )
    # OpenMP may start fewer threads than requested, so a thread may run several parts.
    with cgutils.for_range_slice(builder, number, parts, team, inc=True) as (part, _):
        context.call_internal_no_propagate(builder, compiled.fndesc, inner, [part, parts, *items])
    builder.ret_void()
    return function


def _call(builder: Any, result: Any, name: str) -> Any:
    """Emit a call of one of OpenMP's functions that take nothing."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, []), name)
    return builder.call(function, [])


def _find_openmp() -> bool:
    """Make the functions of torch's OpenMP known to compiled code; return whether they were found."""
    folder = Path(torch.__file__).parent
    found = [
        file
        for place in (folder / "lib", folder.parent / "torch.libs")
        for pattern in ("libgomp*", "libiomp5*", "libomp*")
        for file in sorted(place.glob(pattern))
    ]
    for file in found:
        library = ctypes.CDLL(str(file))
        names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
        if all(hasattr(library, name) for name in names):
            for name in names:
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                llvm.add_symbol(name, address)
            return True
    logger.warning("torch has no GNU OpenMP here: CPU kernels other than matrix products use one thread")
    return False


_HAS_OPENMP = _find_openmp()
