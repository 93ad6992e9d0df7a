"""What a result says of the prefix cache tells a tenant nothing of what another has sent."""

import threading
from pathlib import Path

import pytest

from tests.fixtures.fake_engine import keeper
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.settings import Settings
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.requests.requests import NewRequest
from worker.tasks.engine_config import engine_config
from worker.values.sampling import SamplingParams

PROMPT = "the quick brown fox jumps over the lazy dog " * 4


def cached_tokens(store: Store, tenant_id: str, engine: EngineThread, shard_id: int) -> int:
    """Run the prompt for a tenant; return what its result says was cached."""
    params = SamplingParams(max_tokens=2)
    request = NewRequest(prompt=PROMPT, max_tokens=2, num_prompt_tokens=99)
    own = store.of_tenant(tenant_id)
    with own.transaction() as session:
        batch_id = batches.submit(session, NewBatch(params=params, requests=[request]), shard_size=1)
    runner = ShardRunner(
        store=store,
        saver=ShardSaver(store),
        engine=engine,
        keeper=keeper(store, engine),
        save_seconds=0.05,
        drain_seconds=0.0,
        draining=threading.Event(),
    )
    assert runner.run_this(shard_id) is Ending.FINISHED
    with own.transaction() as session:
        (result,) = result_views.page(session, batch_id, after=0, limit=10)
    return result.num_cached_tokens


@pytest.mark.parametrize(
    ("sharing", "shows_another"), [(None, False), ("tenant", False), ("deployment", True)]
)
def test_cached_tokens_are_the_tenants_own(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sharing: str | None,
    shows_another: bool,
) -> None:
    monkeypatch.setenv("HEADRACE_MODEL", str(write_tiny_llama(tmp_path)))
    if sharing is not None:
        monkeypatch.setenv("HEADRACE_PREFIX_SHARING", sharing)
    monkeypatch.setenv("DATABASE_URL", "postgresql://unused")
    monkeypatch.setenv("REDIS_URL", "redis://unused")
    engine = EngineThread(lambda: Engine(engine_config(Settings())))  # type: ignore[call-arg]
    engine.start()
    try:
        found = [
            cached_tokens(store, tenant_id, engine, shard_id)
            for shard_id, tenant_id in enumerate(("alpha", "alpha", "beta", "beta"), start=1)
        ]
    finally:
        engine.stop()
    assert found[0] == 0 < found[1]
    assert found == [0, found[1], found[1] if shows_another else 0, found[1]]
