"""Define the task `deliver_event`: attempt one delivery. `celery -A worker.tasks.deliver_event worker`."""

import logging
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from typing import Any

from celery import bootsteps
from celery.exceptions import Ignore

from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT
from worker.contract.states import EventState
from worker.queue.celery_app import app
from worker.settings import settings
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching.heartbeat import heartbeat
from worker.tasks.task_events import TaskState, task_events
from worker.webhooks.delivery import Deliverer
from worker.webhooks.sealing import Sealer
from worker.webhooks.targets import Targets

__all__ = ["app", "deliver_event"]

logger = logging.getLogger(__name__)

app.conf.worker_concurrency = settings().callbacks_in_flight


class HeartbeatStep(bootsteps.StartStopStep):
    """Sends heartbeats while this worker takes tasks."""

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._stack = ExitStack()

    def start(self, _: Any) -> None:
        """Start to send them."""
        store = _deliverer().store
        self._stack.enter_context(heartbeat(store, CALLBACKS_QUEUE, slots=settings().callbacks_in_flight))

    def stop(self, _: Any) -> None:
        """Stop, so that this worker no longer counts as alive."""
        self._stack.close()


app.steps["worker"].add(HeartbeatStep)


@cache
def _deliverer() -> Deliverer:
    config = settings()
    return Deliverer(
        store=Store(
            config.database_url, has_pooler=config.has_pooler, pool_size=config.callbacks_in_flight + 1
        ),
        secrets=config.webhook_secrets,
        sealer=Sealer(config.secret_keys),
        targets=Targets(config.allowed_networks, config.webhook_ports),
        timeout=timedelta(seconds=config.webhook_timeout_seconds),
        most_at_once=config.callbacks_per_receiver,
    )


STATES = {
    EventState.DELIVERED: TaskState.SUCCESS,
    EventState.PENDING: TaskState.RETRY,
    EventState.FAILED: TaskState.FAILURE,
}


@app.task(name=DELIVER_EVENT, bind=True)
def deliver_event(task: Any, delivery_id: str) -> None:
    """Try to deliver a webhook event to one receiver, if it is due and no other worker holds it."""
    with task_events.show(DELIVER_EVENT, task_id=task.request.id) as view:
        try:
            made = _deliverer().deliver(delivery_id)
        except DATABASE_AWAY as error:  # it gets another ticket, or its lease runs out
            reason = str(error).splitlines()[0]
            logger.warning("delivery %s: Postgres does not answer: %s", delivery_id, reason)
            view.end(TaskState.RETRY, "Postgres does not answer")
        else:
            if made is not None:
                answer, outcome = made
                said = f"HTTP {answer.status_code}" if answer.status_code else str(answer.error)
                view.end(STATES[outcome.state], f"{said}, {outcome.state}")
    raise Ignore  # or Celery would call it a success, whatever the receiver said
