"""Send Messages, which no other module does."""

from worker.contract.messages import Ticket
from worker.queue.celery_app import app


def publish(ticket: Ticket) -> None:
    """Put a ticket in its queue.

    Raises:
        kombu.exceptions.OperationalError: Redis did not take it. The row will get another ticket.

    """
    app.send_task(
        ticket.task,
        args=[ticket.row_id],
        queue=ticket.queue,
        task_id=ticket.task_id,
        argsrepr=f"({ticket.label})",
        ignore_result=True,
        retry=False,
    )
