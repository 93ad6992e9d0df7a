"""Converts moments of this process's clock to times of Postgres's clock, which all rows have."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session


def to_times(session: Session, moments: Sequence[float | None]) -> list[datetime | None]:
    """Return the times of moments that `time.monotonic()` gave in this process."""
    if all(moment is None for moment in moments):
        return [None] * len(moments)
    now = session.scalars(select(func.clock_timestamp())).one()
    here = time.monotonic()
    return [None if moment is None else now - timedelta(seconds=here - moment) for moment in moments]
