"""Define Messages: ids in Redis, a hint that a row is due. Losing or repeating one does no harm."""

from dataclasses import dataclass

GPU_QUEUE = "gpu"
CALLBACKS_QUEUE = "callbacks"

# Every gpu worker reads GPU_QUEUE, and the queue of its own model beside it.
QUEUE_DIGITS = 16

RUN_SHARD = "run_shard"
DELIVER_EVENT = "deliver_event"


def gpu_queue(model_fingerprint: str | None) -> str:
    """Return the queue for shards that need a model; None: for shards that any model may run."""
    return GPU_QUEUE if model_fingerprint is None else f"{GPU_QUEUE}.{model_fingerprint[:QUEUE_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One Message that asks to run a task for a row. `issue` counts the tickets that the row has had."""

    task: str
    queue: str
    row_id: int | str
    issue: int
    label: str  # shown as the arguments in Flower

    @property
    def task_id(self) -> str:
        """The Celery task id, readable in Flower: `<row>.<issue number>`."""
        return f"{self.row_id}.{self.issue}"
