"""Configure the Celery application. Each setting that is not a default avoids a trap seen in practice.

docs/decisions/0001-messages-are-hints.md lists the traps. Workers are started on a module of
worker.tasks, so that only the process that needs the engine imports it.
"""

from typing import Any

from celery import Celery
from celery.signals import setup_logging
from kombu.transport import TRANSPORT_ALIASES

from worker.contract.messages import GPU_QUEUE
from worker.settings import settings
from worker.telemetry import configure_logging

# kombu's Connection looks its Redis transport up by these names.
TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "worker.queue.transport:TicketTransport"))

app = Celery("headrace", broker=settings().redis_url, set_as_current=True)
app.conf.update(
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    # Rows hold the state, so a message is acknowledged once it is read. Late acks would run work twice on any
    # connection reset, and make the worker exit when Redis dies.
    task_acks_late=False,
    worker_disable_prefetch=True,
    worker_prefetch_multiplier=1,
    # Threads share the one engine of the process, and CUDA does not survive a fork.
    worker_pool="threads",
    task_default_queue=GPU_QUEUE,
    # Flower shows these events.
    worker_send_task_events=True,
    task_send_sent_event=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_transport_options={
        # A publish to a stalled Redis fails instead of hanging for ever.
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "health_check_interval": 10,
    },
)


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    configure_logging(settings().log_level, settings().log_format)
