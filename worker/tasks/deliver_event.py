"""`deliver_event`: one attempt at one webhook. `celery -A worker.tasks.deliver_event worker -Q callbacks`."""

from datetime import timedelta
from functools import cache

from worker.contract.messages import DELIVER_EVENT
from worker.queue.celery_app import app
from worker.settings import settings
from worker.store.session import Store
from worker.webhooks.delivery import deliver

__all__ = ["app", "deliver_event"]

app.conf.worker_concurrency = settings().callbacks_in_flight


@cache
def _store() -> Store:
    return Store(settings().database_url, pool_size=settings().callbacks_in_flight)


@app.task(name=DELIVER_EVENT)
def deliver_event(event_id: str) -> None:
    """Try to deliver a webhook event, if it is due and nobody else is at it."""
    config = settings()
    if config.webhook_secret is None:
        raise RuntimeError("set HEADRACE_WEBHOOK_SECRET: webhooks cannot be signed without it")
    deliver(
        _store(),
        event_id,
        secret=config.webhook_secret.get_secret_value(),
        timeout=timedelta(seconds=config.webhook_timeout_seconds),
        allowed=config.allowed_networks,
    )
