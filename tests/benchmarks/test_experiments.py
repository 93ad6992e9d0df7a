"""The bench of experiments, with fewer requests: the engine, the store and the verdicts are real."""

import pytest

from benchmarks import experiments as bench
from worker.store.database.session import Store


@pytest.mark.slow
def test_a_planted_regression_is_rolled_back_and_the_same_model_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "NUM_REQUESTS", 360)
    monkeypatch.setattr(bench, "RESOLUTION", 0.15)
    monkeypatch.setattr(bench, "FACTOR", 30.0)
    found = bench.measure(store, range(2))
    assert (found["seeds"], found["found"], found["false_alarms"]) == (2, 2, 0)
    assert found["requests_most"] <= found["planned"] < 360
    assert found["loss"] > 0.15
