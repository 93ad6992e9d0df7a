"""Every kernel in every configuration compiles for chips that are not here, without spills.

`make test` compiles the first configuration of each kernel, `make test-slow` all others.
"""

import ast
import multiprocessing
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import ahead_of_time
from kernels.ahead_of_time import Build, BuildError, Built, all_builds
from kernels.device import converts_fp8

ALL = all_builds()
KERNELS = sorted((Path(__file__).parents[2] / "kernels").glob("*/kernel.py"))

Begin = Callable[[Build, str], Future[Built]]

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="Triton is built for Linux only")


def compile_for_real() -> None:
    """In a new process, before Triton is imported: this one only interprets."""
    os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn, initializer=compile_for_real) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


def first_quick(builds: Iterable[tuple[Build, str]]) -> Iterator[Any]:
    """Mark as slow what is not the first build of its kernel for its target."""
    seen = set()
    for one, target in builds:
        is_first = (one.kernel, target) not in seen
        seen.add((one.kernel, target))
        yield pytest.param(one, target, marks=() if is_first else pytest.mark.slow)


@pytest.fixture(scope="module")
def begin(processes: ProcessPoolExecutor, request: pytest.FixtureRequest) -> Begin:
    """Begin a build, unless it has begun: those that this run asks for have."""
    begun: dict[tuple[str, str], Future[Built]] = {}

    def submit(one: Build, target: str) -> Future[Built]:
        key = (str(one), target)
        if key not in begun:
            begun[key] = processes.submit(ahead_of_time.build, one, target)
        return begun[key]

    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == test_compiles.__name__:
            submit(item.callspec.params["wanted"], item.callspec.params["target"])
    return submit


@pytest.mark.parametrize(("wanted", "target"), list(first_quick(ALL)), ids=str)
def test_compiles(wanted: Build, target: str, begin: Begin) -> None:
    built = begin(wanted, target).result()
    assert built.registers > 0


@pytest.mark.slow
def test_hopper_multiplies_quantized_weights_from_registers(begin: Begin) -> None:
    """WGMMA takes only its left operand from there; a weight on the right would go through shared memory."""
    found = [
        begin(one, target).result().assembly
        for one, target in ALL
        if one.kernel == "weight_only_linear.multiply" and target == "sm_90"
    ]
    assert found
    for assembly in found:
        assert re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, *\{", assembly)


def test_every_kernel_is_listed() -> None:
    """What is jitted and called by no other kernel is launched, so it must be in the op's `builds.py`."""
    launched, called = set(), set()
    for path in KERNELS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                launched.add(f"{path.parent.name}.{node.name}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
    assert {name for name in launched if name.split(".")[1] not in called} <= {one.kernel for one, _ in ALL}


@pytest.mark.parametrize(
    ("target", "few_registers"),
    [("sm_80", {"maxnreg": 32}), ("sm_90", {"maxnreg": 32}), ("gfx942", {"waves_per_eu": 8})],
)
def test_spills_are_refused(
    target: str, few_registers: dict[str, int], processes: ProcessPoolExecutor
) -> None:
    one = next(one for one, _ in ALL if one.kernel == "quantize_tokens.quantize")
    tight = replace(one, num_warps=1, options={**one.options, **few_registers})
    with pytest.raises(BuildError, match=rf"quantize_tokens.quantize.* for {target}: spills"):
        processes.submit(ahead_of_time.build, tight, target).result()


@pytest.mark.parametrize(
    ("name", "hip", "capability", "wanted"),
    [
        ("sm_80", None, (8, 0), False),
        (None, None, (8, 9), True),
        ("sm_90", None, (9, 0), True),
        ("gfx942", "6.2", (9, 4), True),
    ],
)
def test_a_gpu_converts_fp8_if_triton_compiles_it_there(
    name: str | None,
    hip: str | None,
    capability: tuple[int, int],
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
    processes: ProcessPoolExecutor,
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert converts_fp8.__wrapped__(torch.device("cuda")) is wanted
    if name is not None:
        assert ahead_of_time.TARGETS[name].converts_fp8 is wanted
        one = next(one for one, _ in ALL if one.types.get("levels") == "*fp8e4nv:16")
        built = processes.submit(ahead_of_time.build, one, name)
        assert isinstance(built.exception(), BuildError) is not wanted


def test_what_is_refused_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are worth what they say: which kernel, in which configuration, for which chip."""
    one = next(one for one, _ in ALL if one.kernel == "quantize_tokens.quantize")
    missing = replace(one, types={})
    with pytest.raises(BuildError, match=r"quantize_tokens.quantize\[.*BLOCK=4096.* for sm_80: .*arguments"):
        ahead_of_time.build(missing, "sm_80")
    limit = ahead_of_time.TARGETS["sm_80"].max_shared_bytes
    built = Built(registers=32, spilled_bytes=0, shared_bytes=limit + 1, assembly="")
    monkeypatch.setattr(ahead_of_time, "_compile", lambda *_: None)
    monkeypatch.setattr(ahead_of_time, "_read_cuda", lambda _: built)
    with pytest.raises(BuildError, match=f"for sm_80: takes {limit + 1} bytes of shared memory"):
        ahead_of_time.build(one, "sm_80")
