"""A request may have a priority of its own: shards are cut by it, and identical ones wait for none lower."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result
from tests.worker.store.requests.test_copies import GREEDY
from tests.worker.store.requests.test_earlier import File
from worker.store.batches import batches, retries
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.store.shards import fair_share, shards, tickets
from worker.store.shards.shards import Claim, Progress
from worker.values.outcomes import Outcome


def asked(letters: str, priorities: dict[str, int]) -> list[NewRequest]:
    """Return a request for each letter, an upper-case one like its lower-case twin but for its priority."""
    return [
        NewRequest(prompt=one.lower(), max_tokens=10, params=GREEDY, priority=priorities.get(one))
        for one in letters
    ]


def claims(store: Store) -> list[tuple[int, str]]:
    """Claim every shard, the first one first; return the priority and the prompts of each."""
    found = []
    while True:
        with store.transaction() as session:
            tickets.issue_shards(session, window=20, reissue_after=timedelta(seconds=60))
            chosen = fair_share.first(session)
        if chosen is None:
            return found
        claimed = held(store, chosen.shard_id)
        found.append((claimed.priority, prompts(claimed)))


def prompts(claimed: Claim) -> str:
    return "".join(str(one.prompts[0]) for one in claimed.requests)


def submit(store: Store, letters: str, priorities: dict[str, int]) -> str:
    new = NewBatch(params=GREEDY, requests=asked(letters, priorities), priority=1)
    with store.transaction() as session:
        return batches.submit(session, new, shard_size=2)


def test_shards_are_cut_by_priority(store: Store) -> None:
    submit(store, "abcdefg", {"b": 5, "d": -1, "f": 5, "g": 5})
    assert claims(store) == [(5, "bf"), (5, "g"), (1, "ac"), (1, "e"), (-1, "d")]
    with store.transaction() as session:
        order = session.scalars(text("SELECT prompt FROM requests ORDER BY position")).all()
    assert "".join(order) == "abcdefg", "requests keep their places"


def test_of_identical_requests_the_highest_priority_counts(store: Store) -> None:
    submit(store, "abcA", {"A": 5})
    assert claims(store) == [(5, "a"), (1, "bc")]


@pytest.mark.parametrize("runs", [False, True])
def test_a_later_line_waits_for_no_shard_of_a_lower_priority(store: Store, *, runs: bool) -> None:
    file = File(store, "ab", "Ac")
    file.read("ab")
    if runs:
        held(store, 1)
    file.read_all(asked("Ac", {"A": 5}))
    assert claims(store) == ([(0, "c")] if runs else [(5, "a"), (0, "ab"), (0, "c")])


def test_a_retry_keeps_priorities(store: Store) -> None:
    batch_id = submit(store, "abcdefg", {"b": 5, "d": -1, "f": 5, "g": 5})
    with store.transaction() as session:
        shard_ids = session.scalars(text("SELECT id FROM shards ORDER BY id")).all()
    for shard_id in shard_ids:
        claimed = held(store, shard_id)
        failed = [result(one.id, outcome=Outcome.FAILED) for one in claimed.requests]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, failed, 0, is_last=True)], lease=LEASE)
    with store.transaction() as session:
        assert retries.retry(session, batch_id, with_cancelled=False, shard_size=2) is not None
    assert claims(store) == [(5, "bf"), (5, "g"), (1, "ac"), (1, "e"), (-1, "d")]
    with store.transaction() as session:
        order = session.scalars(
            text("SELECT prompt FROM requests WHERE batch_id <> :old ORDER BY position"), {"old": batch_id}
        ).all()
    assert "".join(order) == "abcdefg"
