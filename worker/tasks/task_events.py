"""Show in Flower what a worker does, as events of Celery tasks.

Celery calls every task that returns a success. Here the state says what became of the work, and work that
takes no ticket appears too. Events may be lost: the rows in Postgres are the truth.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from typing import Any

from celery.signals import worker_ready

from worker.loops import Loop
from worker.store.shards.shards import Claim


class TaskState(StrEnum):
    """What became of a task's work: the state that Flower shows, and why a task has it."""

    SUCCESS = "task-succeeded"  # it was done
    FAILURE = "task-failed"  # it failed, or was lost to another worker
    RETRY = "task-retried"  # it was handed back, and is tried again later
    REVOKED = "task-revoked"  # its batch was cancelled, or expired
    SKIPPED = "task-skipped"  # there was nothing to do


@dataclass(slots=True)
class TaskView:
    """One task as Flower shows it: `end` says what became of its work."""

    id: str | None  # None: it takes no ticket, and is shown once it has claimed a shard
    name: str
    held: Claim | None = None
    began_at: float = field(default_factory=time.monotonic)
    state: TaskState = TaskState.SKIPPED
    reason: str = "nothing to do"

    def end(self, state: TaskState, reason: str) -> None:
        """Set what became of the work, and why."""
        self.state, self.reason = state, reason


class TaskEvents:
    """Sends events from a thread of its own, as the worker that Celery runs here."""

    def __init__(self) -> None:
        self._consumer: Any = None  # Celery's; None: the worker is not ready
        self._queue: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
        self._here = threading.local()
        self._loop = Loop("task-events", self._send_next, threading.Event())

    def start(self, consumer: Any) -> None:
        """Send events through this consumer's connection, for as long as the process lives."""
        self._consumer = consumer
        self._loop.start()

    @contextmanager
    def show(self, name: str, *, task_id: str | None = None) -> Iterator[TaskView]:
        """Show what becomes of the work in this block; a Celery task has to raise `Ignore` after it."""
        self._here.view = view = TaskView(task_id, name)
        try:
            yield view
        except Exception as error:
            view.end(TaskState.FAILURE, repr(error))
            raise
        finally:
            self._here.view = None
            if view.id is not None:
                self._end(view)

    def claimed(self, held: Claim) -> None:
        """Show the shard that this thread has claimed: a ticket may have named another one."""
        view: TaskView | None = getattr(self._here, "view", None)
        if view is None:
            return
        view.held = held
        args = f"(shard {held.shard_id} of {held.batch_id}, {len(held.requests)} requests)"
        if view.id is not None:
            self._put("task-sent", view, name=view.name, args=args)
            return
        view.id = f"{held.shard_id}-{held.fence}"
        self._put("task-received", view, name=view.name, args=args, kwargs="{}")
        self._put("task-started", view)

    def _end(self, view: TaskView) -> None:
        named: dict[str, Any] = {"result": view.reason, "runtime": time.monotonic() - view.began_at}
        if view.state in {TaskState.FAILURE, TaskState.RETRY}:
            named |= {"exception": view.reason, "traceback": None}
        if view.state is TaskState.REVOKED:
            named |= {"terminated": False, "signum": None, "expired": False}
        self._put(view.state.value, view, **named)

    def _put(self, event: str, view: TaskView, **named: Any) -> None:
        if self._consumer is not None:
            self._queue.put((event, {"uuid": view.id, "timestamp": time.time(), **named}))

    def _send_next(self) -> None:
        event, named = self._queue.get()
        dispatcher = self._consumer.event_dispatcher
        if dispatcher is not None:  # keeps what it cannot send until Redis is back
            dispatcher.send(event, **named)


task_events = TaskEvents()


@worker_ready.connect
def _start(sender: Any, **_: Any) -> None:
    task_events.start(sender)
