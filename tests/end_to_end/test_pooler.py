"""A deployment whose processes reach Postgres through PgBouncer in transaction mode."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.deployment import Deployment, deployment, eventually
from tests.fixtures.pooler import Pooler, needs_pgbouncer, pooler
from tests.fixtures.receiver import receiver
from worker.settings import settings

pytestmark = [pytest.mark.slow, needs_pgbouncer]

SESSIONS = 4
PROMPTS = [f"the quick brown fox {i}" for i in range(64)]
BACKLOG = {"prompts": PROMPTS * 20, "max_tokens": 100, "ignore_eos": True}
# Work of a worker that died resumes within this test only if somebody saw that its Presence was gone.
LONG_LEASE = "3600"


@pytest.fixture(scope="module")
def pgbouncer() -> Iterator[Pooler]:
    with pooler(settings().direct_url, sessions=SESSIONS) as started:
        yield started


@pytest.fixture(scope="module")
def running(
    pgbouncer: Pooler, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    logs = tmp_path_factory.mktemp("logs")
    processes = ("web", "gpu", "callbacks", "dispatcher", "files")
    own = {"pooler": pgbouncer.url, "HEADRACE_LEASE_SECONDS": LONG_LEASE}
    with deployment(logs, tiny_model, processes=processes, **own) as started:
        yield started


def test_a_batch_and_its_webhook(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = running.submit(prompts=PROMPTS, max_tokens=12, callback_url=hook.url)
        (_, body) = hook.wait_for(1)[0]
    assert json.loads(body)["batch_id"] == batch_id
    assert running.wait_for(batch_id)["counts"]["completed"] == len(PROMPTS)


def test_interactive_work_is_heard_of(running: Deployment) -> None:
    answer = running.client.post("/v1/generate", json={"prompt": "the quick", "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tokens_generated"] > 0


def test_a_cancel_reaches_work_that_runs(running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG)
    running.wait_for_progress(batch_id, 0.01)
    running.client.post(f"/v1/batch/{batch_id}/cancel")
    counts = running.wait_for(batch_id, "cancelled")["counts"]
    assert counts["cancelled"] > 0
    assert counts["completed"] + counts["cancelled"] == counts["total"]


def test_the_work_of_a_killed_worker_goes_on(running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG)
    running.wait_for_progress(batch_id, 0.01)
    running.kill_in_a_shard()
    running.start("gpu")
    assert running.wait_for(batch_id)["counts"]["completed"] == len(BACKLOG["prompts"])  # type: ignore[arg-type]


def test_the_pooler_may_go_away_in_the_middle(pgbouncer: Pooler, running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG)
    running.wait_for_progress(batch_id, 0.01)
    pgbouncer.stop()
    pgbouncer.start()
    assert running.wait_for(batch_id)["counts"]["completed"] == len(BACKLOG["prompts"])  # type: ignore[arg-type]


def test_its_transactions_take_no_more_sessions_than_the_pooler_has(running: Deployment) -> None:
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'headrace'"
    )
    eventually(lambda: 0 < running.sql(query)[0][0] <= SESSIONS, what="the pooler's sessions")
