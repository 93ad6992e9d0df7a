"""Identical requests of a file are run once, in whichever chunks of it they come."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held
from tests.worker.store.requests.test_copies import GREEDY, answered, look, lose_worker, save
from worker.contract.states import BatchStatus
from worker.store.counts import usage
from worker.store.database.session import Store
from worker.store.files import batch_files
from worker.store.files.batch_files import NewFileBatch
from worker.store.requests.earlier import Earlier
from worker.store.requests.requests import NewRequest
from worker.values.outcomes import Outcome
from worker.values.results import RequestError


class File:
    """A batch whose requests come in chunks, as the files process reads them."""

    def __init__(self, store: Store, *chunks: str) -> None:
        self.store = store
        self.num_left = sum(map(len, chunks))
        self.earlier = Earlier()
        new = NewFileBatch(
            endpoint="/v1/completions",
            input_file_id="file-1",
            num_lines=self.num_left,
            num_bytes=9,
            completion_window="1h",
            window=timedelta(hours=1),
            name=None,
            metadata={},
            callback_url=None,
            priority=0,
            output_lifetime=None,
        )
        with store.transaction() as session:
            self.batch_id = batch_files.submit(session, new)
            held = batch_files.claim_to_read(session, lease=LEASE)
        assert held is not None
        self.held = held

    def read(self, letters: str) -> None:
        self.read_all(
            [NewRequest(prompt=one, max_tokens=10, params=GREEDY, num_prompt_tokens=1) for one in letters]
        )

    def read_all(self, given: list[NewRequest]) -> None:
        with self.store.transaction() as session:
            left = batch_files.add_requests(
                session, self.held, given, read_offset=0, shard_size=2, lease=LEASE, earlier=self.earlier
            )
        self.num_left -= len(given)
        assert left == self.num_left


def num_shards(store: Store) -> int:
    with store.transaction() as session:
        return session.scalar(text("SELECT count(*) FROM shards")) or 0


@pytest.mark.parametrize("when", ["waits", "runs", "has its result", "has ended"])
def test_a_request_of_a_later_chunk_is_not_run_again(store: Store, when: str) -> None:
    file = File(store, "ab", "aac", "b")
    file.read("ab")
    claimed = held(store, 1) if when != "waits" else None
    if claimed and when == "has its result":
        save(store, claimed, answered(claimed)[:1], is_last=False)
    if claimed and when == "has ended":
        save(store, claimed, answered(claimed))
    file.read("aac")
    file.read("b")
    assert num_shards(store) == 2
    if when != "has ended":
        claimed = claimed or held(store, 1)
        assert [one.prompts[0] for one in claimed.requests] == ["a", "b"], "each once"
        done = {"has its result": 1}.get(when, 0)
        save(store, claimed, answered(claimed)[done:])
    other = held(store, 2)
    assert [one.prompts[0] for one in other.requests] == ["c"]
    save(store, other, answered(other))
    view, found = look(store, file.batch_id)
    assert (view.status, view.num_completed, view.num_deduplicated) == (BatchStatus.COMPLETED, 6, 3)
    assert {one.position: one.output for one in found} == {i: f"out {c}" for i, c in enumerate("abaacb")}
    assert sorted(one.position for one in found if one.source == "duplicate") == [2, 3, 5]
    assert (view.input_tokens, view.cached_tokens, view.output_tokens) == (18, 3 * 1 + 3 * 3, 42)
    assert view.settled_max_tokens == view.max_output_tokens == 60
    with store.transaction() as session:
        assert session.scalar(text("SELECT sum(num_requests) FROM shards")) == 6
        counted = usage.measured(session, minutes=1).total
    assert (counted["requests_deduplicated"], counted["output_tokens"]) == (3, 42)


def test_what_has_failed_is_run_again_for_a_later_chunk(store: Store) -> None:
    file = File(store, "a", "a")
    file.read("a")
    claimed = held(store, 1)
    error = RequestError("worker_lost", "it died")
    save(store, claimed, [replace(one, outcome=Outcome.FAILED, error=error) for one in answered(claimed)])
    file.read("a")
    again = held(store, 2)
    save(store, again, answered(again))
    view, _ = look(store, file.batch_id)
    assert (view.num_failed, view.num_completed, view.num_deduplicated) == (1, 1, 0)


def test_one_of_a_later_chunk_outlives_the_cancellation_of_the_first(store: Store) -> None:
    file = File(store, "a", "a")
    file.read("a")
    claimed = held(store, 1)
    file.read("a")
    save(store, claimed, [replace(one, outcome=Outcome.CANCELLED) for one in answered(claimed)])
    again = held(store, 1)
    save(store, again, answered(again))
    view, _ = look(store, file.batch_id)
    assert (view.status, view.num_cancelled, view.num_completed) == (BatchStatus.COMPLETED, 1, 1)


def test_a_suspect_takes_in_no_others(store: Store) -> None:
    file = File(store, "a", "a")
    file.read("a")
    assert lose_worker(store, file.batch_id, 1) == ["a"]
    file.read("a")
    assert num_shards(store) == 2
