"""Compiles Triton kernels for GPUs without having them, and rejects kernels that would run badly there.

    python -m kernels.ahead_of_time [OP ...]     prints registers and shared memory of every build

Each op with a `kernel.py` has a `builds.py`; its `BUILDS` lists every configuration that `gpu.py` may launch.
Triton caches compiled kernels on disk by their content.
"""

import functools
import importlib
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """A kind of chip by its name in Triton, with its limits for one program."""

    backend: str
    arch: int | str
    warp_size: int
    max_shared_bytes: int
    converts_fp8: bool  # as kernels.device.converts_fp8 answers there


TARGETS = {
    "sm_80": CompileTarget("cuda", 80, 32, 163 * 1024, converts_fp8=False),  # A100
    "sm_90": CompileTarget("cuda", 90, 32, 227 * 1024, converts_fp8=True),  # H100, H200
    "gfx942": CompileTarget("hip", "gfx942", 64, 64 * 1024, converts_fp8=True),  # MI300
}
FP8_TARGETS = tuple(name for name, chip in TARGETS.items() if chip.converts_fp8)


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel in one configuration, as `gpu.py` would launch it."""

    kernel: str  # "op.function", of kernels/op/kernel.py
    # The type of each non-constant argument: "*bf16", "i32", "fp32". The suffix ":16" marks a pointer or a
    # number that is a multiple of 16, which Triton infers by itself at launch.
    types: Mapping[str, str]
    # The value of each constexpr, and of each argument that is None or 1 at launch.
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    targets: tuple[str, ...] = tuple(TARGETS)
    spilled_bytes: int = 0  # of registers a thread, at most: where it was measured to be faster so
    options: Mapping[str, Any] = field(default_factory=dict)  # what else the launch passes

    def __str__(self) -> str:
        given = {name: value for name, value in self.constants.items() if value is not None}
        given |= {name: type_ for name, type_ in self.types.items() if type_.startswith("*")}
        constants = ",".join(f"{name}={value}" for name, value in given.items())
        return f"{self.kernel}[{constants},warps={self.num_warps},stages={self.num_stages}]"


@dataclass(frozen=True, slots=True)
class Built:
    """The result of compiling a Build for one target."""

    registers: int  # a thread
    spilled_bytes: int
    shared_bytes: int
    assembly: str


class BuildError(Exception):
    """Raised when a kernel does not compile for a target, spills registers or overfills shared memory."""


def all_builds() -> list[tuple[Build, str]]:
    """Return every Build of every op, once per target."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/builds.py"))
    modules = [importlib.import_module(f"kernels.{folder}.builds") for folder in folders]
    return [(build, target) for module in modules for build in module.BUILDS for target in build.targets]


def build(wanted: Build, target_name: str) -> Built:
    """Compile one kernel for one target; raise BuildError naming kernel, configuration and target."""
    where = f"{wanted} for {target_name}"
    target = TARGETS[target_name]
    try:
        compiled = _compile(wanted, target)
    except Exception as error:
        raise BuildError(f"{where}: {type(error).__name__}: {error}") from error
    read = _read_cuda if target.backend == "cuda" else _read_hip
    built = read(compiled)
    if built.spilled_bytes > wanted.spilled_bytes:
        raise BuildError(f"{where}: spills {built.spilled_bytes} bytes of registers a thread")
    if built.shared_bytes > target.max_shared_bytes:
        raise BuildError(
            f"{where}: takes {built.shared_bytes} bytes of shared memory; there are {target.max_shared_bytes}"
        )
    return built


def _compile(wanted: Build, target: CompileTarget) -> Any:
    import triton  # noqa: PLC0415  (here, so that listing builds needs no Triton)
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    op, name = wanted.kernel.split(".")
    function = getattr(importlib.import_module(f"kernels.{op}.kernel"), name)
    if set(wanted.types) | set(wanted.constants) != set(function.arg_names):
        raise ValueError(
            f"arguments are {function.arg_names}, but the Build gives {[*wanted.types, *wanted.constants]}"
        )
    types = {name: wanted.types.get(name, "constexpr") for name in function.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, type_ in enumerate(types.values())
        if type_.endswith(":16")
    }
    signature = {name: type_.removesuffix(":16") for name, type_ in types.items()}
    source = ASTSource(function, signature, dict(wanted.constants), attributes)
    options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages, **wanted.options}
    return triton.compile(
        source, target=GPUTarget(target.backend, target.arch, target.warp_size), options=options
    )


def _read_cuda(compiled: Any) -> Built:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [_cuobjdump(), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Built(
        registers=numbers["REG"],
        spilled_bytes=numbers["STACK"] + numbers["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        assembly=compiled.asm["ptx"],
    )


@functools.cache
def _cuobjdump() -> str:
    import triton  # noqa: PLC0415

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


def _read_hip(compiled: Any) -> Built:
    assembly: str = compiled.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        if found is None:
            raise BuildError(f"the assembly does not name {name}")
        return int(found[1])

    return Built(
        registers=number("vgpr_count"),
        spilled_bytes=4 * number("vgpr_spill_count"),
        shared_bytes=compiled.metadata.shared,
        assembly=assembly,
    )


def _lines(ops: list[str]) -> Iterator[str]:
    wanted = [(one, target) for one, target in all_builds() if not ops or one.kernel.split(".")[0] in ops]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        futures = [processes.submit(build, *pair) for pair in wanted]
        for (one, target), future in zip(wanted, futures, strict=True):
            try:
                built = future.result()
                yield f"{target:7} {built.registers:4} registers {built.shared_bytes:7} bytes shared  {one}"
            except BuildError as error:
                yield f"FAILED  {error}"


if __name__ == "__main__":
    for line in _lines(sys.argv[1:]):
        print(line, flush=True)  # noqa: T201  (a command prints)
