"""What Flower says of a shard's run is what became of it."""

import pytest

from tests.fixtures.batches import held, run_to_the_end, submit
from worker.contract.states import BatchStatus
from worker.runs.run import Ending
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards.ends import ShardEnd
from worker.tasks.shard_ends import show_end, what_became
from worker.tasks.task_events import TaskState, TaskView


@pytest.mark.parametrize(
    ("ending", "end", "state", "reason"),
    [
        (Ending.FINISHED, ShardEnd(BatchStatus.PROCESSING, None, 62, 2), "SUCCESS", "62 completed, 2 failed"),
        (Ending.FINISHED, ShardEnd(BatchStatus.COMPLETED, None, 0, 2), "FAILURE", "0 completed, 2 failed"),
        (Ending.FINISHED, ShardEnd(BatchStatus.FAILED, "max_failed_exceeded", 1, 2), "FAILURE", "max_failed"),
        (
            Ending.STOPPED,
            ShardEnd(BatchStatus.CANCELLING, "max_failed_exceeded", 1, 2),
            "FAILURE",
            "max_failed",
        ),
        (Ending.STOPPED, ShardEnd(BatchStatus.CANCELLING, None, 1, 0), "REVOKED", "cancelling"),
        (Ending.STOPPED, ShardEnd(BatchStatus.EXPIRED, None, 1, 0), "REVOKED", "expired"),
        (Ending.HANDED_BACK, ShardEnd(BatchStatus.CANCELLED, None, 0, 0), "REVOKED", "cancelled"),
        (Ending.HANDED_BACK, ShardEnd(BatchStatus.PROCESSING, None, 1, 0), "RETRY", "handed back"),
        (Ending.LOST, ShardEnd(BatchStatus.PROCESSING, None, 1, 0), "FAILURE", "lease lost"),
    ],
)
def test_only_what_was_done_is_a_success(ending: Ending, end: ShardEnd, state: str, reason: str) -> None:
    found, said = what_became(ending, end)
    assert (found.name, reason in said) == (state, True), said


def test_the_results_of_the_shard_count(store: Store) -> None:
    submit(store)
    claimed = held(store, 1)
    run_to_the_end(store, claimed)
    view = TaskView("1.1", "run_shard", claimed)
    show_end(view, Ending.FINISHED, store)
    assert (view.state, view.reason) == (TaskState.SUCCESS, "2 completed, 0 failed")
    other = TaskView("2.1", "run_shard", held(store, 2))
    with store.transaction() as session:
        batches.cancel(session, claimed.batch_id)
    show_end(other, Ending.STOPPED, store)
    assert (other.state, other.reason) == (TaskState.REVOKED, "the batch is cancelling")


def test_a_ticket_that_found_nothing_is_skipped(store: Store) -> None:
    view = TaskView("1.1", "run_shard")
    show_end(view, Ending.NOTHING_TO_DO, store)
    assert (view.state, view.reason) == (TaskState.SKIPPED, "nothing to do")
