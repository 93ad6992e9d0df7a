"""Two tenants, one with a hundred times the work: counted in requests and tokens, not in seconds."""

from pathlib import Path

import pytest

from tests.fixtures.access import bearer, make_key
from tests.fixtures.deployment import Deployment, deployment, eventually
from worker.store.database.session import Store

SMALL = 16  # requests
# Of each output: what a shard takes is long beside the tickets, claims and saves of a fast machine.
TOKENS = 240


def submit(running: Deployment, key: str, prompts: list[str], max_tokens: int) -> str:
    body = {"prompts": prompts, "max_tokens": max_tokens, "ignore_eos": True}
    answer = running.client.post("/v1/batch/async", json=body, headers=bearer(key))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["batch_id"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_batch_ends_long_before_the_large_one_has_used_its_share(
    tiny_model: Path, tmp_path: Path
) -> None:
    options = {
        "HEADRACE_AUTH": "keys",
        "HEADRACE_SHARD_SIZE": str(SMALL),
        "HEADRACE_MAX_NUM_SEQUENCES": str(SMALL),
        "HEADRACE_SAVE_SECONDS": "0.2",
    }
    with deployment(tmp_path, tiny_model, **options) as running:
        store = Store(running.environment["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"))
        try:
            large_key, small_key = (make_key(store, name) for name in ("large", "small"))
        finally:
            store.close()
        large = submit(running, large_key, [f"large {i}" for i in range(100 * SMALL)], TOKENS)

        def done(batch_id: str) -> int:
            query = f"SELECT num_completed FROM batches WHERE id = '{batch_id}'"
            return int(running.sql(query)[0][0])

        eventually(lambda: done(large) >= SMALL, seconds=300, what="the large batch under way")
        held = "SELECT count(*) FROM shards WHERE state = 'running'"
        eventually(lambda: running.sql(held)[0][0] >= 6, seconds=300, what="every slot taken")
        before = done(large)
        small = submit(running, small_key, [f"small {i}" for i in range(SMALL)], TOKENS)
        eventually(lambda: done(small) == SMALL, seconds=300, what="the small batch")
        # In turn of arrival, or a slot that comes free, it would have been six shards: an equal share, one.
        assert done(large) - before <= 3 * SMALL
