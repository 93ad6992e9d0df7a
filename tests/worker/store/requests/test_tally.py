"""A batch's row holds the sums over its Results, however these came about."""

from dataclasses import replace

from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import tally
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.shards import control, shards
from worker.store.shards.shards import Progress
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.results import DeviceSeconds, PartialOutput, RequestError
from worker.values.sampling import SamplingParams

SUMS = """
    SELECT count(*) FILTER (WHERE outcome = 'completed') AS num_completed,
           count(*) FILTER (WHERE outcome = 'failed') AS num_failed,
           count(*) FILTER (WHERE outcome = 'cancelled') AS num_cancelled,
           count(*) FILTER (WHERE outcome = 'completed' AND finish_reason = 'length') AS num_cut,
           count(*) FILTER (WHERE source = 'duplicate') AS num_deduplicated,
           count(*) FILTER (WHERE source LIKE '%cache') AS num_cache_hits,
           10 * count(*) AS settled_max_tokens,
           sum(num_prompt_tokens) AS input_tokens,
           sum(num_cached_tokens) AS cached_tokens,
           sum(num_output_tokens) AS output_tokens,
           coalesce(sum((payload->>'num_reasoning_tokens')::int), 0) AS reasoning_tokens,
           sum(num_output_tokens) FILTER (WHERE outcome = 'completed') AS completed_output_tokens,
           (SELECT sum(octet_length(prompt)) FROM requests) + sum(octet_length(output)) AS stored_bytes,
           sum(prefill_seconds) AS prefill_seconds,
           sum(decode_seconds) AS decode_seconds,
           sum(padding_seconds) AS padding_seconds
    FROM results
"""


def check(store: Store, *, num_results: int) -> None:
    with store.transaction() as session:
        sums = session.execute(text(SUMS)).mappings().one()
        row = session.execute(text("SELECT * FROM batches")).mappings().one()
    assert set(sums) == {column.key for column in tally.TALLY}
    assert {name: row[name] for name in sums} == dict(sums)
    assert row["num_completed"] + row["num_failed"] + row["num_cancelled"] == num_results


def test_every_result_is_counted_once(store: Store) -> None:
    """Saved, copied, taken from a cache, failed, cut off, cancelled singly or with the batch."""
    new = NewBatch(
        params=SamplingParams(max_tokens=10, temperature=0),
        requests=[
            NewRequest(prompt=letter, max_tokens=10, num_prompt_tokens=3) for letter in "aaabbccddeeff"
        ],
    )
    with store.transaction() as session:
        batch_id = batches.submit(session, new, shard_size=4)
    claimed = held(store, 1)
    ran, cached, failed, cut = (
        replace(result(one.id, output="\N{SNOWMAN}"), num_copies=one.num_copies) for one in claimed.requests
    )
    saved = [
        replace(ran, seconds=DeviceSeconds(0.5, 0.25, 0.125), finish_reason="length"),
        replace(cached, source=Source.EXACT_CACHE, num_cached_tokens=3),
        replace(failed, outcome=Outcome.FAILED, error=RequestError("no", "no"), output=None),
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, saved, 2)], lease=LEASE)
    check(store, num_results=7)
    with store.transaction() as session:
        # A commit of unknown outcome is repeated: nothing is counted again.
        shards.save(session, [Progress(claimed, [*saved, cut], 0, is_last=True)], lease=LEASE)
    check(store, num_results=9)
    second = held(store, 2)
    kept = {second.requests[0].id: PartialOutput([1, 2], "\N{SNOWMAN}", None)}
    with store.transaction() as session:
        shards.save(session, [Progress(second, [], 2, partial_outputs=kept)], lease=LEASE)
        control.cancel_request(session, batch_id, 11)
    with store.transaction() as session:
        shards.release(session, second)
    check(store, num_results=10)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    check(store, num_results=13)
    with store.transaction() as session:
        row = session.get_one(BatchRow, batch_id)
        assert (row.num_completed, row.num_failed, row.num_cancelled) == (7, 2, 4)
        assert (row.num_deduplicated, row.num_cache_hits, row.num_cut) == (4 + 1, 2, 3)
        assert row.settled_max_tokens == row.max_output_tokens
