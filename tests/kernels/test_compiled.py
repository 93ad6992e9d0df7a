import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numba


def compile_beside_another(folder: Path, start: Barrier) -> bool:
    """Return whether this process had to compile what two call at the same moment."""
    from kernels import compiled

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
