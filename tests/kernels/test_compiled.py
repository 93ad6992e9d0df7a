import ast
import multiprocessing
import os
import shutil
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numba
import pytest
import torch

from kernels import compiled
from kernels.simd import call_at, float32_at, int64_at

ROOT = Path(compiled.__file__).parent.parent


def compile_beside_another(folder: Path, start: Barrier) -> bool:
    """Return whether this process had to compile what two call at the same moment."""
    compiled._FOLDER = folder
    vars(numba.config)["CACHE_DIR"] = str(folder)

    def double(number: float) -> float:
        return 2 * number

    kernel = compiled.kernel(double)
    start.wait(120)
    assert kernel(1.5) == 3
    return sum(vars(kernel)["_cache_misses"].values()) == 1


def report(folder: Path, start: Barrier, answers: "multiprocessing.SimpleQueue[bool]") -> None:
    answers.put(compile_beside_another(folder, start))


def test_of_processes_that_start_together_one_compiles_and_the_others_load(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, answers = spawn.Barrier(3), spawn.SimpleQueue()
    processes = [spawn.Process(target=report, args=(tmp_path, start, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(answers.get() for _ in processes) == [False, False, True]


def double_at(address: int) -> None:
    numbers = int64_at(address)
    float32_at(numbers[0])[numbers[1]] *= 2


def call_entry(folder: Path, answers: "multiprocessing.SimpleQueue[bool]") -> None:
    compiled._FOLDER = folder
    vars(numba.config)["CACHE_DIR"] = str(folder)
    address = compiled.entry(double_at)

    @numba.njit
    def call(address: int, place: int, index: int) -> None:
        call_at(address, (float32_at(place), index))

    numbers = torch.tensor([1.5, 2.5])
    call(address, numbers.data_ptr(), 1)
    assert numbers.tolist() == [1.5, 5]
    answers.put(compiled._ENTRIES[-1].cache_hits == 1)


def test_what_kernels_call_by_its_address_is_loaded_once_it_was_compiled(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    for _ in range(2):
        process = spawn.Process(target=call_entry, args=(tmp_path, answers))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert [answers.get(), answers.get()] == [False, True]


def test_a_cpu_kernel_is_made_of_declared_sources_only() -> None:
    """A change to any other file would leave kernels in the cache that were compiled before it."""
    declared = compiled.sources()
    assert {file.name for file in declared} >= {"compiled.py", "simd.py", "threads.py", "cpu.py"}
    for file in declared:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kernels"):
                module = ROOT.joinpath(*str(node.module).split("."))
                assert module.with_suffix(".py") in declared, f"{file}: {node.module}"


WRITE_NORMED_HEADS = """
import hashlib
import torch
from kernels.kv_write import HeadNorms, LayerCache, rotary_kv_write

generator = torch.Generator().manual_seed(1)
qkv, angles = (torch.randn(*shape, generator=generator) for shape in ((40, 160), (40, 2, 8)))
query, key = torch.rand(2, 16, generator=generator) + 0.5
cache = LayerCache.allocate(4, 2, 16, 16, torch.int8)
rows = torch.arange(40)
query = rotary_kv_write(qkv, angles, rows, rows, cache, HeadNorms(query, key, 1e-5))
print(hashlib.sha256(query.numpy().tobytes() + cache.scales.numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_code_that_was_just_compiled_gives_the_bits_of_code_from_the_disk(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    command, environment = (
        [sys.executable, "-c", WRITE_NORMED_HEADS],
        os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    compiling, loading = (subprocess.check_output(command, env=environment) for _ in range(2))
    assert compiling == loading
