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

from kernels.compiled import has_feature, inlined
from kernels.simd import int64_at

logger = logging.getLogger(__name__)

# Compiled code calls the decorated function without its first parameter.
intrinsic: Any = untyped_intrinsic

# With fewer elements, waking another thread costs more than it saves; estimated from timings on 2 cores.
_ELEMENTS_WORTH_A_THREAD = 1 << 15

# int64 in a cache line: counters that different threads write lie so far apart.
LINE = 8
# How a thread waits: so many looks at a counter, some 50 nanoseconds apart, then looks between sleeps.
MOST_LOOKS = 2000
SLEEP_MICROSECONDS = 50


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
def take_next(_context: Any, counters: Any, index: Any) -> Any:
    """Return a counter and raise it by one; no two threads get the same number.

    Who sees the raised counter by `meet` sees what this thread wrote before.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "acq_rel")

    return types.int64(counters, types.intp), generate


@inlined
def meet(team: int, member: int, num_members: int) -> None:
    """Wait until all members have come here.

    `team` is the address of a line for all and one for each member, LINE int64 each, zeros at first. If
    another member is late, other programs may have its core. So this one spins for a moment, then sleeps: an
    idle core takes over work that waits for a core.
    """
    counts, own = int64_at(team), (1 + member) * LINE
    counts[own] += num_members
    take_next(counts, 0)
    num_looks = 0
    while _look(counts, 0) < counts[own]:
        if num_looks < MOST_LOOKS:
            _pause()
        else:
            _sleep()
        num_looks += 1


@intrinsic
def _look(_context: Any, counters: Any, index: Any) -> Any:
    """Return a counter, and see all that was written by those who have raised it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.gep(arguments[0], [arguments[1]]), "acquire", 8)

    return types.int64(counters, types.intp), generate


@intrinsic
def _pause(_context: Any) -> Any:
    """Let the processor do nothing for a moment, if it is an x86."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if has_feature("sse2"):
            _call(builder, ir.VoidType(), "llvm.x86.sse2.pause")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _sleep(_context: Any) -> Any:
    """Leave the core to others for a moment."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        builder.call(function, [ir.Constant(_I32, SLEEP_MICROSECONDS)])
        return context.get_dummy_value()

    return types.void(), generate


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
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        if all(hasattr(library, name) for name in names):
            for name in names:
                address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                llvm.add_symbol(name, address)
            return True
    logger.warning("torch has no GNU OpenMP here: CPU kernels other than matrix products use one thread")
    return False


_HAS_OPENMP = _find_openmp()
