import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import step_clock
from worker.engine.engine import Engine


def test_steps_that_choose_tokens_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = iter([{"a": 2, "b": 1}, {}, {"a": 1}])
    monkeypatch.setattr(Engine, "step", lambda *_: SimpleNamespace(num_new_tokens=next(outputs)))
    log = tmp_path / "data" / "steps"
    monkeypatch.setenv(step_clock.LOG_VARIABLE, "")
    assert "-A benchmarks.step_clock " in step_clock.gpu_command(log)["gpu"]
    before = time.time()
    with log.open("a", buffering=1) as file:
        step_clock._install(file)
        assert [Engine.step(None).num_new_tokens for _ in range(3)] == [{"a": 2, "b": 1}, {}, {"a": 1}]
        file.write("[17")  # one that is being written
    steps = step_clock.read_steps(log)
    assert [step.tokens for step in steps] == [3, 1]
    assert before <= steps[0].at <= steps[1].at <= time.time()
    assert all(step.seconds >= 0 for step in steps)
