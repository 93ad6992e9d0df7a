import json
import queue
import threading
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import fleet
from benchmarks.simulated_workers import SimulatedWorker, Way, WorkerTimes, _take, run_some
from tests.fixtures.benchmark_docs import documented_fields
from worker.store.batches import batches


def run_here(way: Way, jobs: Sequence[SimulatedWorker], *, when_ready: Callable[[], None]) -> WorkerTimes:
    """Run all in this process."""
    when_ready()
    answers: queue.Queue[WorkerTimes | str] = queue.Queue()
    run_some(way, jobs, 1, threading.Barrier(1), answers)
    found = answers.get()
    assert isinstance(found, WorkerTimes), found
    return found


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("which", "num_batches"), [("one", 1), ("many", 3)])
def test_workers_finish_what_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    which: str,
    num_batches: int,
) -> None:
    monkeypatch.setattr(batches, "lock", batches.lock)  # the workers' clock is taken off at the end
    monkeypatch.setattr(fleet, "run_all", run_here)
    options = ["--workers", "3", "--rounds", "2", "--shards", "2", "--shard-size", "4"]
    options += ["--turns", "1", "--only", which]
    assert fleet.main(options) == 0
    (result,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert result.keys() == documented_fields("fleet")
    assert (result["workers"], result["batches"]) == (3, num_batches)
    assert result["results_s"] > 0


def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fleet.main(["--workers", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_a_process_that_dies_does_not_keep_the_others_waiting() -> None:
    answers: queue.Queue[WorkerTimes | str] = queue.Queue()
    dead = cast("BaseProcess", SimpleNamespace(is_alive=lambda: False))
    answers.put("what it said")
    assert _take(answers, [dead]) == "what it said"
    with pytest.raises(RuntimeError, match="has died"):
        _take(answers, [dead])
