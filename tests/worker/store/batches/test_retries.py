"""A retry runs the failed requests of an ended batch as a new batch."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, submit
from worker.contract.states import Lane
from worker.quality.expected import Expected
from worker.store.batches import batch_views, batches, retries
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.store.tenants import tenants
from worker.store.tenants.quotas import QuotaExceededError
from worker.values.outcomes import Outcome
from worker.values.requests import EmbeddingParams
from worker.values.sampling import SamplingParams

TWO_CHOICES, THREE_CHOICES = SamplingParams(max_tokens=10, n=2), SamplingParams(max_tokens=10, n=3)
# The most that they can generate: 3 x 10, 2 x 10 of one prompt, 2 x 10 of two prompts, and nothing.
MOST = [30, 20, 40, 0]
KEPT = len(r'{"match": "exact", "value": "\u00e9"}')
ONE_OF_A_KIND = [
    NewRequest(prompt="one", max_tokens=10, num_prompt_tokens=1, expected=Expected.from_json("é")),
    NewRequest(prompt="two", max_tokens=10, params=replace(THREE_CHOICES, n=1, best_of=2)),
    NewRequest(prompt="", inputs=("thr\u00e9e", (1, 2, 3)), max_tokens=10, params=TWO_CHOICES),
    NewRequest(prompt="four", max_tokens=10, params=EmbeddingParams()),
]


def cancelled(store: Store) -> str:
    """A cancelled batch of these requests."""
    with store.transaction() as session:
        new = NewBatch(params=THREE_CHOICES, requests=ONE_OF_A_KIND)
        batch_id = batches.submit(session, new, shard_size=2)
        batches.cancel(session, batch_id)
    return batch_id


def test_a_retry_counts_what_its_requests_can_generate_and_store_as_their_batch_did(store: Store) -> None:
    batch_id = cancelled(store)
    with store.transaction() as session:
        assert retries.retry(session, batch_id, with_cancelled=True, shard_size=2) is not None
        sums = "SELECT num_requests, num_prompt_tokens, max_output_tokens, stored_bytes FROM batches"
        assert session.execute(text(sums)).all() == [(4, 1, sum(MOST), 3 + KEPT + 3 + (6 + 12) + 4)] * 2
        kept = session.scalars(text("SELECT expected FROM requests WHERE position = 0")).all()
        assert [json.loads(one) for one in kept] == [{"match": "exact", "value": "é"}] * 2


def test_a_retry_keeps_together_what_was_placed_together(store: Store) -> None:
    prompts = [f"{'ab'[i % 2] * 80} {i}" for i in range(8)]
    with store.transaction() as session:
        new = NewBatch(SamplingParams(max_tokens=9), [NewRequest(prompt, max_tokens=9) for prompt in prompts])
        batch_id = batches.submit(session, new, shard_size=4)
        batches.cancel(session, batch_id)
        assert retries.retry(session, batch_id, with_cancelled=True, shard_size=4) is not None
        found = text(
            "SELECT array_agg(position ORDER BY position) FROM requests GROUP BY shard_id ORDER BY 1"
        )
        assert session.scalars(found).all() == [[0, 2, 4, 6], [0, 2, 4, 6], [1, 3, 5, 7], [1, 3, 5, 7]]
        positions = text("SELECT position, prompt FROM requests ORDER BY position, id")
        assert session.execute(positions).all() == [(i, one) for i, one in enumerate(prompts) for _ in "ab"]


def test_a_retry_is_within_the_quota_of_tokens_over_all_choices(store: Store) -> None:
    batch_id = cancelled(store)
    with store.transaction() as session:
        tenants.create(session, "default")
        tenants.change(session, "default", {"max_tokens": sum(MOST)})
    with store.transaction() as session, pytest.raises(QuotaExceededError):
        retries.retry(session, batch_id, with_cancelled=True, shard_size=2)
    with store.transaction() as session:
        tenants.change(session, "default", {"max_tokens": sum(MOST) + 1})
        assert retries.retry(session, batch_id, with_cancelled=True, shard_size=2) is not None


def test_a_cancelled_batch_has_settled_all_that_its_choices_could_generate(store: Store) -> None:
    """What a batch that ended seemed to have left would count as tokens of waiting work."""
    batch_id = cancelled(store)
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert view.settled_max_tokens == view.max_output_tokens == sum(MOST)


def test_nobody_waits_for_the_retry_of_interactive_work(store: Store) -> None:
    """An interactive batch with a shard of the other lane would be shown in no list."""
    batch_id = submit(store, num_requests=1, lane=Lane.INTERACTIVE)
    claimed = held(store, 1)
    with store.transaction() as session:
        failed = result(claimed.requests[0].id, outcome=Outcome.FAILED)
        shards.save(session, [Progress(claimed, [failed], 0, is_last=True)], lease=LEASE)
    with store.transaction() as session:
        assert retries.retry(session, batch_id, with_cancelled=False, shard_size=1) is not None
        lanes = "SELECT b.lane, s.lane FROM batches b JOIN shards s ON s.batch_id = b.id ORDER BY s.id"
        assert session.execute(text(lanes)).all() == [("interactive", "interactive"), ("batch", "batch")]
