import pytest

from worker.engine.requests.batch_policy import POLICIES, BatchPolicy, batch_policy
from worker.engine.requests.errors import ConfigError


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_named(name: str) -> None:
    assert batch_policy(name).name == name


def test_a_policy_takes_the_parameters_that_it_needs() -> None:
    assert batch_policy("continuous", size=3, timeout_seconds=9.0) == BatchPolicy()
    assert batch_policy("fixed", size=3, timeout_seconds=9.0) == BatchPolicy("fixed", 3, window_seconds=9.0)
    assert batch_policy("adaptive", latency_seconds=2.0).latency_target_seconds == 2.0
    with pytest.raises(ConfigError, match="must be one of continuous, fixed, window"):
        batch_policy("best")


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "best"},
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
