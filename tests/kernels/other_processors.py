"""Runs the tests of CPU kernels as compiled without AVX512, then compiles the same code for aarch64.

It is a program of its own: a processor's features are chosen before Numba is imported.

    python -m tests.kernels.other_processors TESTS...

After pytest's output it writes one line of JSON: the vector instructions of each kernel, on x86 and aarch64.
"""

import gc
import json
import os
import re
import sys
from typing import Any

# AVX2 as Intel and AMD have had it since 2013; torch and oneDNN have settings of their own.
MASKS = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+lzcnt",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
AARCH64 = "aarch64-unknown-linux-gnu"
X86_VECTORS, AARCH64_VECTORS = re.compile(r"\t(v\w+)\t.*%([xyz])mm"), re.compile(r"\t(\w+)\t.*\.(?:4s|2d|8h)")


def compile_for_aarch64(ir: str, target: Any, binding: Any) -> str:
    """Return the assembly of a module that was made for x86, but has no instruction of one processor."""
    machine = target.create_target_machine(cpu="generic", opt=3)
    ir = re.sub(r"target datalayout = .*", f'target datalayout = "{machine.target_data}"', ir)
    ir = re.sub(r"target triple = .*", f'target triple = "{AARCH64}"', ir)
    assembly: str = machine.emit_assembly(binding.parse_assembly(re.sub(r'"target-[a-z]+"="[^"]*"', "", ir)))
    return assembly


def main(tests: list[str]) -> int:
    """Run the tests and print what became of the kernels; return pytest's exit status."""
    os.environ |= MASKS
    import llvmlite.binding as llvm
    import numba
    import pytest
    from numba.core.dispatcher import Dispatcher

    compile_ = numba.njit
    # Code that comes from the cache has no source to compile for another processor.
    numba.njit = lambda *given, **options: compile_(*given, **options | {"cache": False})
    status = int(pytest.main(["-q", "-p", "no:cacheprovider", *tests]))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target, found = llvm.Target.from_triple(AARCH64), {}
    for one in gc.get_objects():
        if isinstance(one, Dispatcher) and one.__module__.startswith("kernels."):
            for signature in one.signatures:
                here = X86_VECTORS.findall(one.inspect_asm(signature))
                assembly = compile_for_aarch64(one.inspect_llvm(signature), target, llvm)
                found[f"{one.__module__}.{one.py_func.__name__}"] = {
                    "registers": sorted({register for _, register in here}),
                    "x86": len(here),
                    "aarch64": len(AARCH64_VECTORS.findall(assembly)),
                }
    sys.stdout.write(f"{json.dumps(found)}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
