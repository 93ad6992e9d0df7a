import ast
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numba

from kernels import compiled

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


def test_a_cpu_kernel_is_made_of_declared_sources_only() -> None:
    """A change to any other file would leave kernels in the cache that were compiled before it."""
    declared = compiled.sources()
    assert {file.name for file in declared} >= {"compiled.py", "simd.py", "threads.py", "cpu.py"}
    for file in declared:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kernels"):
                module = ROOT.joinpath(*str(node.module).split("."))
                assert module.with_suffix(".py") in declared, f"{file}: {node.module}"
