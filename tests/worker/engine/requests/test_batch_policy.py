import pytest

from worker.engine.requests.batch_policy import POLICIES, BatchPolicy, named_policy
from worker.engine.requests.errors import ConfigError


def test_policies_are_named() -> None:
    assert set(POLICIES) == {
        "fixed-size",
        "time-window",
        "adaptive",
        "priority",
        "length-buckets",
        "token-budget",
        "memory-limit",
    }
    assert named_policy("adaptive").latency_target_seconds is not None
    with pytest.raises(ConfigError, match="must be one of fixed-size, time-window"):
        named_policy("best")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_items": 0},
        {"max_tokens": 0},
        {"max_memory_share": 0.0},
        {"max_memory_share": 1.1},
        {"window_seconds": -1.0},
        {"window_seconds": float("inf")},
        {"latency_target_seconds": 0.0},
        {"latency_target_seconds": float("nan")},
        {"length_borders": (5, 5)},
        {"length_borders": (0,)},
        {"length_borders": (9, 5)},
        {"priority_seconds": -0.1},
    ],
    ids=str,
)
def test_policies_name_the_field(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BatchPolicy(**wrong)
