"""The log tells the life of a batch: what was committed, in order, with ids."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.fixtures.batches import claim, held, run_to_the_end, submit
from worker.contract.states import Lane
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import control, leases, shards
from worker.store.shards.shards import Progress


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "headrace.journal")
    return caplog


def events(told: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Return the events since the last call, each with its fields."""
    found = [(record.getMessage(), record.__dict__["fields"]) for record in told.records]
    told.clear()
    return found


def names(told: pytest.LogCaptureFixture) -> list[str]:
    return [name for name, _ in events(told)]


def test_a_batch_whose_worker_died(store: Store, told: pytest.LogCaptureFixture) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    lost = held(store, 1, lease=timedelta(seconds=-1))
    with store.transaction() as session:
        assert leases.return_expired(session, 1, batch_id, max_attempts=2)
    again = held(store, 1, worker="gpu@there")
    with store.transaction() as session:
        assert shards.save(session, [Progress(lost, [], 0)], lease=None)[0].name == "LOST"
    with store.transaction() as session:
        shards.release(session, again)
    run_to_the_end(store, held(store, 1, worker="gpu@there"))
    found = events(told)
    assert {fields["batch"] for _, fields in found} == {batch_id}
    assert [name for name, _ in found] == [
        "batch accepted",
        "batch started",
        "shard claimed",
        "lease expired",
        "shard claimed",
        "lease lost",
        "shard handed back",
        "shard claimed",
        "shard finished",
        "batch ended",
    ]
    assert found[3][1] | {"worker": "gpu@here", "attempt": 1, "shard": 1} == found[3][1]
    assert found[4][1] | {"worker": "gpu@there", "attempt": 2, "fence": 2, "requests": 2} == found[4][1]
    end = found[-1][1]
    assert (end["status"], end["completed"], end["failed"], end["output_tokens"]) == ("completed", 2, 0, 14)
    assert end["total_seconds"] == pytest.approx(end["queued_seconds"] + end["running_seconds"], abs=0.002)
    assert end["output_tokens_per_second"] > 0


def test_what_a_customer_does_to_a_batch(store: Store, told: pytest.LogCaptureFixture) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        for act in (control.pause, control.pause, control.resume, control.resume):
            act(session, batch_id)
        control.cancel_request(session, batch_id, 3)
        batches.cancel(session, batch_id)
        control.remove(session, batch_id)
    assert names(told) == [
        "batch accepted",
        "batch paused",
        "batch resumed",
        "request cancelled",
        "batch cancelled",
        "batch ended",
        "batch deleted",
    ]


def test_the_shards_of_interactive_work_are_told_at_debug(
    store: Store, told: pytest.LogCaptureFixture
) -> None:
    submit(store, num_requests=1, lane=Lane.INTERACTIVE)
    run_to_the_end(store, held(store, 1))
    shown = [record.getMessage() for record in told.records if record.levelno >= logging.INFO]
    assert shown == ["batch accepted", "batch started", "batch ended"]


def test_what_is_rolled_back_is_not_told(store: Store, told: pytest.LogCaptureFixture) -> None:
    batch_id = submit(store)
    events(told)

    def cancel_and_fail() -> None:
        with store.transaction() as session:
            batches.cancel(session, batch_id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cancel_and_fail()
    with store.transaction() as session:
        batches.cancel(session, batch_id)
        session.rollback()
    assert claim(store, 99) is None
    assert events(told) == []


def test_a_commit_that_was_cut_off_is_told_as_uncertain(
    store: Store, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: Session) -> None:
        raise OperationalError("COMMIT", None, Exception("the connection was reset"))

    monkeypatch.setattr(Session, "commit", cut_off)
    with pytest.raises(OperationalError):
        submit(store)
    ((name, fields),) = events(told)
    assert (name, fields["commit"]) == ("batch accepted", "unknown")


def test_neither_prompts_nor_outputs_are_told(store: Store, told: pytest.LogCaptureFixture) -> None:
    submit(store, num_requests=1, callback_url="https://user:secret@receiver.test/hook")
    run_to_the_end(store, held(store, 1))
    told_text = str(events(told))
    assert "event written" in told_text
    assert not any(word in told_text for word in ("prompt 0", "out ", "secret", "receiver"))
