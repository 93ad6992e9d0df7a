"""A second run of a shard's last requests: each request has one Result, whoever brings it first."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, held, result, submit
from worker.contract.states import BatchStatus
from worker.store.batches import batch_views, batches
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView
from worker.store.shards import backups, control, counting, leases, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.outcomes import Outcome
from worker.values.results import NewResult, PartialOutput
from worker.values.tool_loops import ToolLoop


def back_up(store: Store, of: Claim, *, worker: str = "gpu@idle") -> Claim | None:
    with store.transaction() as session:
        return backups.claim(session, of.shard_id, of.fence, worker=worker)


def backed_up(store: Store, of: Claim) -> Claim:
    backup = back_up(store, of)
    assert backup is not None
    return backup


def save(
    store: Store, claimed: Claim, results: Sequence[NewResult] = (), *, is_last: bool = False, tokens: int = 0
) -> AfterSave:
    with store.transaction() as session:
        (saved,) = shards.save(session, [Progress(claimed, results, tokens, is_last)], lease=LEASE)
    counting.follow(store, claimed.batch_id)
    return saved


def outputs(store: Store, batch_id: str) -> list[tuple[int, str | None]]:
    return [(one.position, one.output) for one in page(store, batch_id)]


def page(store: Store, batch_id: str) -> list[ResultView]:
    with store.transaction() as session:
        return result_views.page(session, batch_id, after=0, limit=99)


def status(store: Store, batch_id: str) -> BatchStatus:
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    return found.status


def shard(store: Store) -> tuple[str, str | None]:
    with store.transaction() as session:
        state, worker = session.execute(text("SELECT state, worker FROM shards ORDER BY id LIMIT 1")).one()
    return state, worker


def ids(claimed: Claim) -> list[int]:
    return [request.id for request in claimed.requests]


@pytest.mark.parametrize("is_last", [False, True], ids=["", "the backup is done"])
def test_a_backup_that_is_first_finishes_the_shard(store: Store, is_last: bool) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    first, second = ids(slow)
    assert save(store, slow, [result(first, output="slow")]) is AfterSave.CONTINUE
    backup = backed_up(store, slow)
    assert ids(backup) == [second]
    assert save(store, backup, [result(second, output="fast")], is_last=is_last) is AfterSave.DONE
    assert status(store, batch_id) is BatchStatus.COMPLETED
    late = [result(second, output="slow")]
    assert save(store, slow, late, is_last=True) is AfterSave.DONE, "it was not lost"
    assert outputs(store, batch_id) == [(0, "slow"), (1, "fast")]
    assert shard(store) == ("finished", None)


def test_each_request_takes_the_first_result_of_two_runs(store: Store) -> None:
    batch_id = submit(store, num_requests=3, shard_size=3)
    slow = held(store, 1)
    one, two, three = ids(slow)
    backup = backed_up(store, slow)
    assert save(store, backup, [result(one, output="fast")]) is AfterSave.CANCEL_SOME
    with store.transaction() as session:
        assert backups.unwanted(session, slow) == [one]
    assert (
        save(store, slow, [result(one, output="slow"), result(two, output="slow")]) is AfterSave.CANCEL_SOME
    )
    with store.transaction() as session:
        assert sorted(backups.unwanted(session, backup)) == [one, two]
    # Neither has run all requests to their end, and together they have.
    assert save(store, slow, [result(three, output="slow")]) is AfterSave.DONE
    assert save(store, backup, [result(three, output="fast")]) is AfterSave.DONE
    assert outputs(store, batch_id) == [(0, "fast"), (1, "slow"), (2, "slow")]
    with store.transaction() as session:
        counted = session.execute(text("SELECT num_completed, output_tokens, status FROM batches")).one()
    assert tuple(counted) == (3, 21, "completed"), "what a run did in vain is not counted"


def test_a_holder_that_ends_first_leaves_nothing_to_its_backup(store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    done = [result(one, output="slow") for one in ids(slow)]
    assert save(store, slow, done, is_last=True) is AfterSave.STOP, "the batch has ended"
    assert save(store, backup, [result(one) for one in ids(backup)]) is AfterSave.DONE
    assert {output for _, output in outputs(store, batch_id)} == {"slow"}


def test_a_backup_brings_completed_results_only(store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    one, two = ids(backup)
    bad = [result(one, outcome=Outcome.FAILED), result(two, outcome=Outcome.CANCELLED)]
    assert save(store, backup, bad, is_last=True) is AfterSave.CANCEL_SOME
    assert outputs(store, batch_id) == []
    assert shard(store) == ("running", "gpu@here"), "it is the holder's"
    assert save(store, slow, bad, is_last=True) is not AfterSave.LOST
    assert len(page(store, batch_id)) == 2


def test_a_backup_neither_renews_the_lease_nor_stores_progress(store: Store) -> None:
    submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    kept = {ids(slow)[0]: PartialOutput((5, 6), "text", None)}
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET lease_expires_at = now() - interval '1 second'"))
        shards.save(session, [Progress(backup, (), 99, partial_outputs=kept)], lease=LEASE)
    with store.transaction() as session:
        assert leases.return_expired(session, 1, slow.batch_id, max_attempts=5)
        found = session.execute(text("SELECT running_tokens, state FROM shards")).one()
        assert tuple(found) == (0, "ready")
        assert not session.scalar(text("SELECT count(*) FROM partial_outputs"))


def test_of_a_shard_with_a_backup_no_partial_output_outlives_its_result(store: Store) -> None:
    submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    one, _ = ids(slow)
    save(store, backup, [result(one)])
    with store.transaction() as session:
        parts = {one: PartialOutput((5, 6), "text", None)}
        shards.save(session, [Progress(slow, (), 2, partial_outputs=parts)], lease=LEASE)
    with store.transaction() as session:
        assert not session.scalar(text("SELECT count(*) FROM partial_outputs"))


def test_after_its_holder_a_backup_is_good_until_the_next_claim(store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET lease_expires_at = now() - interval '1 second'"))
    with store.transaction() as session:
        assert leases.return_expired(session, 1, batch_id, max_attempts=5)
    one, two = ids(backup)
    assert save(store, backup, [result(one, output="fast")]) is AfterSave.CANCEL_SOME
    assert shard(store) == ("ready", None)
    again = held(store, 1, worker="gpu@other")
    assert ids(again) == [two]
    assert save(store, backup, [result(two)]) is AfterSave.LOST
    assert save(store, slow, [result(two)], is_last=True) is AfterSave.LOST
    assert save(store, again, [result(two, output="other")], is_last=True) is AfterSave.STOP
    assert outputs(store, batch_id) == [(0, "fast"), (1, "other")]


def test_a_backup_of_a_shard_that_nobody_holds_any_more_finishes_it(store: Store) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    with store.transaction() as session:
        shards.release(session, slow)
    assert save(store, backup, [result(ids(backup)[0])]) is AfterSave.DONE
    assert claim(store, 1) is None
    assert status(store, batch_id) is BatchStatus.COMPLETED


def test_one_worker_saves_its_backup_and_its_own_claim_of_the_same_shard(store: Store) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    with store.transaction() as session:
        shards.release(session, slow)
    own = held(store, 1, worker="gpu@idle")
    both = [
        Progress(backup, [result(ids(backup)[0], output="backup")], 0),
        Progress(own, (), 0),
    ]
    with store.transaction() as session:
        assert shards.save(session, both, lease=LEASE) == [AfterSave.LOST, AfterSave.CONTINUE]
    assert outputs(store, batch_id) == []


def test_a_claim_has_one_backup_and_none_of_its_own_worker(store: Store) -> None:
    submit(store, num_requests=1, shard_size=1)
    slow = held(store, 1)
    assert back_up(store, slow, worker="gpu@here") is None
    backed_up(store, slow)
    assert back_up(store, slow, worker="gpu@third") is None
    with store.transaction() as session:
        shards.release(session, slow)
    assert back_up(store, slow) is None, "nobody runs it"
    again = held(store, 1)
    assert back_up(store, slow) is None
    assert back_up(store, again) is not None, "it is another claim"


def test_what_a_worker_has_died_on_is_not_run_twice(store: Store) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    held(store, 1)
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET lease_expires_at = now() - interval '1 second'"))
    with store.transaction() as session:
        assert leases.return_expired(session, 1, batch_id, max_attempts=5)
    assert back_up(store, held(store, 1)) is None


@pytest.mark.parametrize("end", ["cancel", "pause", "cancel a request"])
def test_a_backup_learns_of_a_cancel_and_a_pause(store: Store, end: str) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    slow = held(store, 1)
    backup = backed_up(store, slow)
    with store.transaction() as session:
        if end == "cancel":
            batches.cancel(session, batch_id)
        elif end == "pause":
            control.pause(session, batch_id)
        else:
            control.cancel_request(session, batch_id, 1)
    verdicts = {"cancel": AfterSave.STOP, "pause": AfterSave.PAUSE, "cancel a request": AfterSave.CANCEL_SOME}
    assert save(store, backup) is verdicts[end]
    if end == "cancel a request":
        with store.transaction() as session:
            assert backups.unwanted(session, backup) == [ids(backup)[1]]
    cut = [result(one, outcome=Outcome.CANCELLED) for one in ids(slow)]
    save(store, backup, cut, is_last=True)
    assert page(store, batch_id) == [], "the holder says what it had so far"
    if end == "cancel":
        save(store, slow, cut, is_last=True)
        assert status(store, batch_id) is BatchStatus.CANCELLED
        assert save(store, backup, [result(one) for one in ids(backup)]) in {AfterSave.DONE, AfterSave.LOST}
        assert {one.outcome for one in page(store, batch_id)} == {Outcome.CANCELLED}


def test_stragglers_leave_out_what_must_run_once(store: Store) -> None:
    plain = NewRequest("a", 10, num_prompt_tokens=3)
    loop = ToolLoop("https://example.com", [], [], {})
    for given in (plain, replace(plain, is_streamed=True), replace(plain, tool_loop=loop)):
        submit(store, requests=[given], shard_size=1)
    submit(store, num_requests=1, shard_size=1, max_total_tokens=1000)
    claims = [held(store, shard_id) for shard_id in (1, 2, 3, 4)]
    with store.transaction() as session:
        found = backups.stragglers(session, worker="gpu@idle")
        assert [one.shard_id for one in found] == [1]
        assert backups.stragglers(session, worker="gpu@here") == []
        assert (found[0].num_left, found[0].prompt_tokens, found[0].max_tokens) == (1, 3, 10)
        assert found[0].fence == claims[0].fence
    save(store, claims[0], tokens=5)
    with store.transaction() as session:
        (only,) = backups.stragglers(session, worker="gpu@idle")
    assert (only.running_tokens, only.stored_tokens, only.output_tokens) == (5, 0, None)


def test_while_much_runs_nobody_is_a_straggler(store: Store) -> None:
    submit(store, num_requests=backups.MAX_SHARDS + 1, shard_size=1)
    held(store, 1)
    with store.transaction() as session:
        session.execute(
            text("UPDATE shards SET state = 'running', worker = 'gpu@here', fence = 1, attempts = 1")
        )
        assert backups.stragglers(session, worker="gpu@idle") == []
        session.execute(text("UPDATE shards SET state = 'finished' WHERE id = 2"))
        assert len(backups.stragglers(session, worker="gpu@idle")) == backups.MAX_SHARDS
