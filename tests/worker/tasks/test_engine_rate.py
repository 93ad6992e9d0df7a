from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker.engine.engine_thread import EngineThread
from worker.tasks import engine_rate
from worker.tasks.engine_rate import EngineRate


class Readings:
    """An engine as its counters show it, and the time they are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.rate = EngineRate()
        monkeypatch.setattr(engine_rate, "time", SimpleNamespace(monotonic=lambda: self.now))

    def read(self, now: float, tokens: int, *, num_running: int = 1) -> float | None:
        self.now = now
        stats = SimpleNamespace(decode_tokens=tokens)
        engine: Any = SimpleNamespace(stats=stats, num_running=num_running, num_waiting=0)
        return self.rate.read(cast("EngineThread", engine))


def test_only_time_with_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Readings(monkeypatch)
    assert readings.read(0, 0, num_running=0) is None
    assert readings.read(100, 40) is None, "when that work began is not known"
    assert readings.read(105, 140) == pytest.approx(20)
    assert readings.read(110, 200, num_running=0) == pytest.approx(20)
    assert readings.read(900, 300) == pytest.approx(20)
    assert readings.read(905, 800) == pytest.approx(26.4, abs=0.1)


def test_it_follows_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = Readings(monkeypatch)
    for i in range(100):
        rate = readings.read(5.0 * i, 50 * i)
    assert rate == pytest.approx(10)
    for i in range(100, 160):
        rate = readings.read(5.0 * i, 5000 + 500 * (i - 99))
    assert rate == pytest.approx(100, rel=0.05)
