"""Each batch setting reaches the engine, under the policy that needs it."""

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.batch_policy import POLICIES, BatchPolicy
from worker.engine.requests.generation import GenerationRequest
from worker.settings import Settings
from worker.tasks import lifecycle
from worker.tasks.engine_config import engine_config


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


def test_blocks_and_the_prefix_cache_have_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (engine_config(Settings()).block_size, engine_config(Settings()).enable_prefix_cache) == (16, True)  # type: ignore[call-arg]
    monkeypatch.setenv("HEADRACE_BLOCK_SIZE", "32")
    monkeypatch.setenv("HEADRACE_PREFIX_CACHE", "off")
    changed = engine_config(Settings())  # type: ignore[call-arg]
    assert (changed.block_size, changed.enable_prefix_cache) == (32, False)


def test_the_engine_of_a_worker_follows_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variables = {"MODEL": str(write_tiny_llama(tmp_path)), "BATCH_POLICY": "fixed", "BATCH_SIZE": "2"}
    for name, value in (variables | {"BATCH_TIMEOUT_MS": "3600000"}).items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    thread = EngineThread(lambda: lifecycle._warm_engine(Settings()))  # type: ignore[call-arg]
    thread.start()  # the first request, which warms the engine, waits for no batch
    assert thread.limits["batch_policy"]["name"] == "fixed"
    first = thread.submit([GenerationRequest(1, "the quick")])
    assert first.take(0.2) == []
    second = thread.submit([GenerationRequest(2, "brown fox")])
    assert [len(one.take(60.0)) for one in (first, second)] == [1, 1]
    thread.stop()


def test_no_draft_is_loaded_where_nothing_speculates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_DRAFT_MODEL", str(tmp_path))
    monkeypatch.setenv("HEADRACE_SPECULATION", "off")
    assert engine_config(Settings()).draft_model is None  # type: ignore[call-arg]
    monkeypatch.setenv("HEADRACE_SPECULATION", "auto")
    assert engine_config(Settings()).draft_model == tmp_path  # type: ignore[call-arg]
