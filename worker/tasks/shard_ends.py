"""Say what became of a shard's run, as Flower shows it."""

from worker.contract.states import BatchStatus
from worker.runs.run import Ending
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import ends
from worker.store.shards.ends import ShardEnd
from worker.tasks.task_events import TaskState, TaskView

STOPPED = {BatchStatus.CANCELLING, BatchStatus.CANCELLED, BatchStatus.EXPIRED}


def show_end(view: TaskView, ending: Ending, store: Store) -> None:
    """Set what became of the shard that this view's thread has claimed, if it has claimed one."""
    held = view.held
    if held is None or ending is Ending.NOTHING_TO_DO:
        return
    try:
        with store.look() as session:
            end = ends.look(session, held.shard_id, held.batch_id)
    except DATABASE_AWAY:
        end = None
    view.end(*what_became(ending, end))


def what_became(ending: Ending, end: ShardEnd | None) -> tuple[TaskState, str]:
    """Return the state of a shard's run, and its reason; `end` is None if that is unknown."""
    if ending is Ending.LOST:
        return TaskState.FAILURE, "lease lost: another worker holds the shard, or its batch has ended"
    if end is None:
        return TaskState.RETRY if ending is Ending.HANDED_BACK else TaskState.SUCCESS, str(ending)
    if end.status is BatchStatus.FAILED or (end.status is BatchStatus.CANCELLING and end.error_code):
        return TaskState.FAILURE, f"the batch failed: {end.error_code}"
    if end.status in STOPPED:
        return TaskState.REVOKED, f"the batch is {end.status}"
    if ending is Ending.HANDED_BACK:
        return TaskState.RETRY, "handed back: the worker stops, or the batch was paused"
    counts = f"{end.num_completed} completed, {end.num_failed} failed"
    return TaskState.FAILURE if end.num_failed and not end.num_completed else TaskState.SUCCESS, counts
