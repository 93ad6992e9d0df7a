"""Two gpu workers of one Celery name, one for each device, are two."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.main import create_app
from tests.fixtures.deployment import eventually
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.contract.messages import GPU_QUEUE, gpu_queue
from worker.contract.models import identify
from worker.queue.celery_app import app
from worker.settings import settings
from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.watching import workers
from worker.tasks.lifecycle import EngineStep


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = write_tiny_llama(tmp_path / "tiny")
    monkeypatch.setenv("HEADRACE_MODEL", str(directory))
    monkeypatch.setenv("HEADRACE_DRAIN_SECONDS", "0")
    monkeypatch.setenv("HEADRACE_SHARDS_IN_FLIGHT", "2")
    settings.cache_clear()
    yield directory
    monkeypatch.undo()
    settings.cache_clear()


def celery_worker() -> Any:
    return SimpleNamespace(hostname="gpu@host", app=app, pool=SimpleNamespace(executor=ThreadPoolExecutor(1)))


def names(store: Store) -> list[str]:
    with store.transaction() as session:
        return list(session.scalars(text("SELECT name FROM workers WHERE slots > 0")))


def num_present(store: Store) -> int:
    with store.transaction() as session:
        return len(presence.present(session))


def test_one_of_two_of_one_name_stops_and_the_other_counts(store: Store, model: Path) -> None:
    parent = celery_worker()
    steps = [EngineStep(parent), EngineStep(parent)]
    try:
        for step in steps:
            step.start(parent)
        eventually(lambda: len(names(store)) == 2, what="two rows")
        assert {name.rpartition("-")[0] for name in names(store)} == {f"gpu@host/{os.getpid()}"}

        eventually(lambda: num_present(store) == 2, what="two locks")
        steps.pop(0).stop(parent)
        assert len(names(store)) == 1
        with store.transaction() as session:
            assert workers.slots(session, GPU_QUEUE, model=identify(model).fingerprint) == 2
        with TestClient(create_app(settings())) as client:
            assert client.get("/ready").json()["worker"] == "ok"
    finally:
        parent.pool = celery_worker().pool
        for step in steps:
            step.stop(parent)
    assert names(store) == []
    eventually(lambda: num_present(store) == 0, what="the end of the listeners")


def test_a_worker_reads_its_models_queue_beside_everybodys(
    store: Store, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # it may use one core of the machine
    parent = celery_worker()
    step = EngineStep(parent)
    app.amqp.queues.select([GPU_QUEUE])
    try:
        step.start(parent)
        eventually(lambda: names(store), what="a row")
        assert set(app.amqp.queues.consume_from) == {GPU_QUEUE, gpu_queue(identify(model).fingerprint)}
        with store.transaction() as session:
            assert session.scalar(text("SELECT info ->> 'cores' FROM workers WHERE slots > 0")) == "1"
    finally:
        step.stop(parent)
        eventually(lambda: num_present(store) == 0, what="the end of the listener")
        app.amqp.queues.deselect([GPU_QUEUE])


def test_workers_that_ended_without_a_word_are_forgotten(store: Store) -> None:
    with store.transaction() as session:
        for number in range(3):
            workers.seen(session, name=f"gpu@host/{number}", queue=GPU_QUEUE, slots=1, info={})
        session.execute(
            text("UPDATE workers SET seen_at = now() - interval '11 minutes' WHERE name <> 'gpu@host/2'")
        )
        workers.forget_the_dead(session)
    assert names(store) == ["gpu@host/2"]
