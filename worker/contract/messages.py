"""Messages: ids in Redis, a hint that a row is due. Losing or doubling one does no harm."""

from dataclasses import dataclass

GPU_QUEUE = "gpu"
CALLBACKS_QUEUE = "callbacks"

# Every gpu worker reads GPU_QUEUE, and the queue of its own model beside it.
QUEUE_DIGITS = 16

RUN_SHARD = "run_shard"
DELIVER_EVENT = "deliver_event"


def gpu_queue(model_fingerprint: str | None) -> str:
    """Return the queue for shards that wait for a model; None: for any."""
    return GPU_QUEUE if model_fingerprint is None else f"{GPU_QUEUE}.{model_fingerprint[:QUEUE_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One message: run this task for this row. `issue` counts the tickets the row has had."""

    task: str
    queue: str
    row_id: int | str
    issue: int
    label: str  # what Flower shows as the arguments

    @property
    def task_id(self) -> str:
        """Readable in Flower: `<row>.<issue number>`."""
        return f"{self.row_id}.{self.issue}"
