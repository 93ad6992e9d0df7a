from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, held, result
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches, placing, retries
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import placement, result_views
from worker.store.requests.placement import Placement
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView
from worker.store.shards import control, leases, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.outcomes import Outcome
from worker.values.requests import EmbeddingParams, Prompt
from worker.values.results import DeviceSeconds, NewResult, PartialOutput, RequestError
from worker.values.sampling import SamplingParams

GREEDY = SamplingParams(max_tokens=10, temperature=0)


def submit(store: Store, prompts: str, *, params: SamplingParams = GREEDY, shard_size: int = 2) -> str:
    """A batch with one request a letter."""
    new = NewBatch(
        params=params,
        requests=[NewRequest(prompt=letter, max_tokens=10, num_prompt_tokens=1) for letter in prompts],
    )
    with store.transaction() as session:
        return batches.submit(session, new, shard_size=shard_size)


def answered(claimed: Claim, **changes: object) -> list[NewResult]:
    """A result for each request of a claim, as the runner makes them."""
    return [
        replace(result(one.id, output=f"out {one.prompts[0]}"), num_copies=one.num_copies, **changes)  # type: ignore[arg-type]
        for one in claimed.requests
    ]


def save(store: Store, claimed: Claim, results: list[NewResult], *, is_last: bool = True) -> None:
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, 0, is_last)], lease=LEASE)


def look(store: Store, batch_id: str) -> tuple[BatchView, list[ResultView]]:
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
        found = result_views.page(session, batch_id, after=0, limit=100)
    assert view is not None
    assert view.num_settled == len(found)
    assert [one.sequence for one in found] == list(range(1, len(found) + 1))
    return view, found


def test_identical_requests_are_run_once_and_all_answered(store: Store) -> None:
    batch_id = submit(store, "abacaba")
    first, second = held(store, 1), held(store, 2)
    assert [(one.prompts[0], one.num_copies) for one in first.requests] == [("a", 4), ("b", 2)]
    assert [(one.prompts[0], one.num_copies) for one in second.requests] == [("c", 1)]
    save(store, first, answered(first, seconds=DeviceSeconds(1.0, 2.0, 0.5)))
    save(store, second, answered(second))
    view, found = look(store, batch_id)
    assert (view.status, view.num_completed, view.num_deduplicated) == (BatchStatus.COMPLETED, 7, 4)
    assert {one.position: one.output for one in found} == {
        i: f"out {letter}" for i, letter in enumerate("abacaba")
    }
    assert [one.position for one in found if one.source == "duplicate"] == [2, 4, 5, 6]
    # Usage is each request's own; what the device did is counted once.
    assert (view.input_tokens, view.output_tokens) == (21, 49)
    assert view.cached_tokens == 3 * 1 + 4 * 3
    assert view.seconds == DeviceSeconds(2.0, 4.0, 1.0)
    assert view.progress == 1.0


@pytest.mark.parametrize(
    ("params", "num_run"),
    [
        (SamplingParams(max_tokens=10, temperature=0), 1),
        (SamplingParams(max_tokens=10, temperature=0.7, seed=3), 1),
        (SamplingParams(max_tokens=10, temperature=0.7), 4),
    ],
)
def test_only_what_has_one_answer_is_run_once(store: Store, params: SamplingParams, num_run: int) -> None:
    submit(store, "aaaa", params=params, shard_size=4)
    assert len(held(store, 1).requests) == num_run


def test_requests_that_differ_in_anything_are_not_identical(store: Store) -> None:
    new = NewBatch(
        params=GREEDY,
        requests=[
            NewRequest(prompt="a", max_tokens=10),
            NewRequest(prompt="a", max_tokens=9),
            NewRequest(prompt="a", max_tokens=10, add_special_tokens=False),
            NewRequest(prompt="a", max_tokens=10, params=replace(GREEDY, stop=("x",))),
            NewRequest(prompt="a", max_tokens=10, params=replace(GREEDY, seed=1)),
            NewRequest(prompt="a", max_tokens=10, params=GREEDY),
        ],
    )
    with store.transaction() as session:
        batches.submit(session, new, shard_size=10)
    assert [one.num_copies for one in held(store, 1).requests] == [2, 1, 1, 1, 1]


def test_a_failure_is_the_failure_of_all(store: Store) -> None:
    batch_id = submit(store, "aab")
    claimed = held(store, 1)
    broken, fine = answered(claimed)
    error = RequestError("generation_failed", "no")
    save(store, claimed, [replace(broken, outcome=Outcome.FAILED, error=error, output=None), fine])
    view, found = look(store, batch_id)
    assert (view.num_failed, view.num_completed, view.num_deduplicated) == (2, 1, 1)
    assert {one.error_code for one in found if one.position < 2} == {"generation_failed"}


def test_a_crash_before_the_save_costs_the_copies_nothing(store: Store) -> None:
    batch_id = submit(store, "aaab")
    held(store, 1)
    with store.transaction() as session:  # the worker died: its lease ran out
        session.execute(text("UPDATE shards SET state = 'ready'"))
    again = held(store, 1)
    assert [(one.prompts[0], one.num_copies) for one in again.requests] == [("a", 3), ("b", 1)]
    save(store, again, answered(again))
    assert look(store, batch_id)[0].num_deduplicated == 2


def test_a_save_that_is_repeated_counts_once(store: Store) -> None:
    batch_id = submit(store, "aab")
    claimed = held(store, 1)
    save(store, claimed, answered(claimed)[:1], is_last=False)
    save(store, claimed, answered(claimed))
    view, _ = look(store, batch_id)
    assert (view.num_completed, view.num_deduplicated, view.output_tokens) == (3, 1, 21)


def test_a_cancelled_batch_settles_every_copy_once(store: Store) -> None:
    batch_id = submit(store, "aabbcc")
    claimed = held(store, 1)
    save(store, claimed, answered(claimed)[:1], is_last=False)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
        shards.release(session, claimed)
    view, _ = look(store, batch_id)
    assert (view.status, view.num_completed, view.num_cancelled) == (BatchStatus.CANCELLED, 2, 4)


def lose_worker(store: Store, batch_id: str, shard_id: int) -> list[str]:
    """Claim a shard and let its lease run out; return what was claimed."""
    claimed = held(store, shard_id)
    with store.transaction() as session:
        session.execute(
            text("UPDATE shards SET lease_expires_at = now() - interval '1s' WHERE id = :id"),
            {"id": shard_id},
        )
        assert leases.return_expired(session, shard_id, batch_id, max_attempts=1)
    return [str(one.prompts[0]) for one in claimed.requests]


def test_a_request_that_kills_its_worker_fails_with_its_copies_and_alone(store: Store) -> None:
    batch_id = submit(store, "baba")
    assert lose_worker(store, batch_id, 1) == ["b", "a"]  # now it is a suspect
    assert lose_worker(store, batch_id, 1) == ["b", "a"]  # and is bisected: identical ones stay together
    assert lose_worker(store, batch_id, 1) == ["b"]
    other = held(store, 2)
    assert [(one.prompts[0], one.num_copies) for one in other.requests] == [("a", 2)]
    save(store, other, answered(other))
    view, found = look(store, batch_id)
    assert (view.status, view.num_failed, view.num_completed) == (BatchStatus.COMPLETED, 2, 2)
    assert [one.position for one in found if one.error_code == "worker_lost"] == [0, 2]


def test_a_copy_that_is_cancelled_is_not_answered(store: Store) -> None:
    batch_id = submit(store, "aaa")
    claimed = held(store, 1)
    with store.transaction() as session:
        control.cancel_request(session, batch_id, 1)
        (saved,) = shards.save(session, [Progress(claimed, [], 3)], lease=LEASE)
    assert saved is AfterSave.CONTINUE, "nobody runs it, so there is nothing to cut"
    assert [one.position for one in look(store, batch_id)[1]] == [1]
    save(store, claimed, answered(claimed))
    view, found = look(store, batch_id)
    assert (view.status, view.num_completed, view.num_cancelled) == (BatchStatus.COMPLETED, 2, 1)
    assert {one.position: one.error_code for one in found} == {0: None, 1: "request_cancelled", 2: None}


def test_what_was_cut_off_by_a_cancel_is_what_its_copies_have_too(store: Store) -> None:
    batch_id = submit(store, "aa")
    claimed = held(store, 1)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    save(store, claimed, [replace(one, outcome=Outcome.CANCELLED) for one in answered(claimed)])
    view, found = look(store, batch_id)
    assert (view.status, view.num_cancelled) == (BatchStatus.CANCELLED, 2)
    assert {one.error_code for one in found} == {"batch_cancelled"}


def test_a_retry_starts_its_savings_from_nothing(store: Store) -> None:
    batch_id = submit(store, "aa")
    claimed = held(store, 1)
    error = RequestError("generation_failed", "no")
    (failed,) = answered(claimed, seconds=DeviceSeconds(1.0, 2.0, 0.5))
    save(store, claimed, [replace(failed, outcome=Outcome.FAILED, error=error, output=None)])
    with store.transaction() as session:
        retried = retries.retry(session, batch_id, with_cancelled=False, shard_size=2)
    assert retried is not None
    fresh = look(store, retried)[0]
    assert (fresh.num_requests, fresh.num_deduplicated, fresh.seconds) == (2, 0, DeviceSeconds())
    assert [one.num_copies for one in held(store, 2).requests] == [2]


def test_chunks_of_a_file_are_deduplicated_each(store: Store) -> None:
    batch_id = submit(store, "ab")
    more = [NewRequest(prompt=letter, max_tokens=10) for letter in "caca"]
    with store.transaction() as session:
        shard_ids = placing.add_shards(
            session,
            batch_id,
            more,
            batch_params=GREEDY,
            shard_size=2,
            priority=0,
            model_fingerprint=None,
            expires_at=None,
            first_position=2,
        )
    (claimed,) = (held(store, shard_id) for shard_id in set(shard_ids))
    assert [(one.prompts[0], one.position, one.num_copies) for one in claimed.requests] == [
        ("c", 2, 2),
        ("a", 3, 2),
    ]


def test_what_is_streamed_is_no_exception(store: Store) -> None:
    streamed = NewRequest(prompt="a", max_tokens=10, is_streamed=True)
    with store.transaction() as session:
        batches.submit(session, NewBatch(params=GREEDY, requests=[streamed, streamed]), shard_size=4)
    assert [one.num_copies for one in held(store, 1).requests] == [2]


def test_other_kinds_and_inputs_are_not_identical(store: Store) -> None:
    inputs: tuple[tuple[Prompt, ...], ...] = (("a",), ("a", "a"), ((1, 2),), ((1, 2),))
    given = [NewRequest(prompt="", inputs=one, max_tokens=10, params=EmbeddingParams()) for one in inputs]
    given += [NewRequest(prompt="a", max_tokens=10)]
    with store.transaction() as session:
        batches.submit(session, NewBatch(params=GREEDY, requests=given), shard_size=8)
    assert [one.num_copies for one in held(store, 1).requests] == [1, 1, 2, 1]


def test_a_copy_outlives_the_cancellation_of_its_first(store: Store) -> None:
    batch_id = submit(store, "aaa")
    claimed = held(store, 1)
    lone = [replace(one, outcome=Outcome.CANCELLED, num_copies=1) for one in answered(claimed)]
    save(store, claimed, lone)
    again = claim(store, 1)
    assert again is not None, "the copies have no result: the shard is not finished"
    assert [(one.prompts[0], one.num_copies) for one in again.requests] == [("a", 2)]
    save(store, again, answered(again))
    view, _ = look(store, batch_id)
    assert (view.status, view.num_cancelled, view.num_completed) == (BatchStatus.COMPLETED, 1, 2)


def test_shards_hold_different_requests_and_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(size: int, *digests: bytes | None) -> tuple[list[int], list[int]]:
        placed = Placement(size)
        given = [NewRequest(prompt="a", max_tokens=10)] * len(digests)
        indices = placed.place_all(given, digests, [0] * len(digests))
        return indices, [shard.num_requests for shard in placed.shards]

    assert place(2, b"a", b"b", b"a", None, b"b", b"c", None, b"a") == ([0, 0, 0, 1, 0, 1, 2, 0], [5, 2, 1])
    monkeypatch.setattr(placement, "MAX_REMEMBERED", 1)
    assert place(1, b"a", b"b", b"b", b"a") == ([0, 1, 1, 2], [1, 2, 1])
    monkeypatch.setattr(placement, "MAX_ROWS", 3)
    assert place(2, *[b"a"] * 8) == ([0, 0, 0, 0, 1, 1, 1, 1], [4, 4])


def test_what_was_kept_of_one_that_is_never_run_again_is_what_its_copies_have_too(store: Store) -> None:
    batch_id = submit(store, "aab")
    claimed = held(store, 1)
    kept = {claimed.requests[0].id: PartialOutput([4, 5], "so far", 1)}
    with store.transaction() as session:
        control.pause(session, batch_id)
        shards.release(session, claimed, kept)
        batches.cancel(session, batch_id)
    view, found = look(store, batch_id)
    assert (view.status, view.num_cancelled, view.num_deduplicated) == (BatchStatus.CANCELLED, 3, 1)
    assert [(one.output, one.num_output_tokens, str(one.source)) for one in found] == [
        ("so far", 2, "engine"),
        ("so far", 2, "duplicate"),
        (None, 0, "engine"),
    ]
    assert (view.input_tokens, view.cached_tokens, view.output_tokens) == (2, 1, 4)
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM partial_outputs")) == 0
