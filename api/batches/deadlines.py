"""Whether a batch can be done in time. One that cannot is refused, not left to expire."""

from datetime import UTC, datetime, timedelta
from math import ceil

from sqlalchemy.orm import Session

from api.errors import InvalidInputError
from worker.store import queueing
from worker.store.batches import NewBatch


def check_deadline(session: Session, batch: NewBatch) -> None:
    """Compare what is to be generated, and what goes before it, with the workers' measured rate.

    Without a worker that has had work to measure it by, every deadline in the future passes.

    Raises:
        InvalidInputError: the deadline is past, or cannot be met.

    """
    if batch.deadline is None and batch.completion_window is None:
        return
    param = "deadline" if batch.deadline is not None else "completion_window"
    now = queueing.read_clock(session)
    expires_at = batch.deadline or now + (batch.completion_window or timedelta())
    left = (expires_at - now).total_seconds()
    if left <= 0:
        raise InvalidInputError(f"{param}: {_text(expires_at)} is past", param=param, code="deadline_past")
    model = None if batch.model is None else batch.model.fingerprint
    rate = queueing.capacity(session, model=model).tokens_per_second
    if rate is None:
        return
    ahead = queueing.ahead_of(session, priority=batch.priority, expires_at=expires_at, model=model)
    share = queueing.usual_share(session, model=model)
    own = sum(request.max_tokens for request in batch.requests)
    needed = (own + ahead.num_tokens) * share / rate
    if needed > left:
        raise InvalidInputError(
            f"{param}: cannot be met: about {ceil(own * share)} output tokens of this batch and "
            f"{ceil(ahead.num_tokens * share)} of those that go before it take {ceil(needed)} s at the "
            f"measured {rate:g} tokens a second, and {int(left)} s are left",
            param=param,
            code="deadline_unreachable",
        )


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
