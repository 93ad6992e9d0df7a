"""Each batch setting reaches the engine, under the policy that needs it."""

from typing import Any

import pytest

from worker.engine.requests.batch_policy import POLICIES, BatchPolicy
from worker.settings import Settings
from worker.tasks.lifecycle import engine_config


def policy_of(monkeypatch: pytest.MonkeyPatch, **variables: str) -> BatchPolicy:
    for name, value in variables.items():
        monkeypatch.setenv(f"HEADRACE_BATCH_{name}", value)
    return engine_config(Settings()).batch_policy  # type: ignore[call-arg]


def test_batching_is_continuous(monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy_of(monkeypatch) == BatchPolicy()
    assert BatchPolicy().name == "continuous"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_setting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert policy_of(monkeypatch, POLICY=name).name == name


@pytest.mark.parametrize(
    ("name", "variables", "fields"),
    [
        ("fixed", {"SIZE": "7", "TIMEOUT_MS": "20"}, {"max_items": 7, "window_seconds": 0.02}),
        ("window", {"TIMEOUT_MS": "20"}, {"window_seconds": 0.02}),
        ("adaptive", {"LATENCY_MS": "100"}, {"latency_target_seconds": 0.1}),
        ("priority", {"PRIORITY_SECONDS": "60"}, {"priority_seconds": 60.0}),
        ("length-buckets", {"LENGTHS": "10, 20"}, {"length_borders": (10, 20), "window_seconds": 0.05}),
        ("token-budget", {"TOKENS": "900"}, {"max_tokens": 900}),
        ("memory", {"MEMORY_SHARE": "0.25"}, {"max_memory_share": 0.25}),
    ],
)
def test_parameters_reach_the_policy(
    monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], fields: dict[str, Any]
) -> None:
    assert policy_of(monkeypatch, POLICY=name, **variables) == BatchPolicy(name, **fields)


def test_lengths_that_do_not_grow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the shortest first"):
        policy_of(monkeypatch, LENGTHS="20,10")
