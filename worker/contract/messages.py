"""Messages: ids in Redis, a hint that a row is due. Losing or doubling one does no harm."""

from dataclasses import dataclass

GPU_QUEUE = "gpu"
CALLBACKS_QUEUE = "callbacks"

RUN_SHARD = "run_shard"
DELIVER_EVENT = "deliver_event"


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
