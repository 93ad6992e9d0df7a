"""Log what transactions did to batches, shards and deliveries, once they have committed."""

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from worker.telemetry import fields

logger = logging.getLogger("headrace.journal")

KEPT = "journal"  # in `session.info`

Event = tuple[int, str, dict[str, Any]]  # level, text, fields


def record(session: Session, event: str, /, *, level: int = logging.INFO, **named: object) -> None:
    """Log an event with these fields when this transaction commits, and never if it is rolled back."""
    session.info.setdefault(KEPT, []).append((level, event, fields(**named)))


def take(session: Session) -> Sequence[Event]:
    """Return the events of a transaction that is about to commit or was rolled back, and forget them."""
    found: Sequence[Event] = session.info.pop(KEPT, ())
    return found


def write(events: Sequence[Event], *, is_certain: bool = True) -> None:
    """Log the events of a transaction; they are uncertain if the answer to its commit was lost."""
    for level, event, extra in events:
        if not is_certain:
            extra["fields"]["commit"] = "unknown"
        logger.log(level, event, extra=extra)
