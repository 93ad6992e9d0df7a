"""Reads when a batch is to start: an instant, or a number of seconds from now."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AwareDatetime, Field, Tag

from api.dependencies import Services
from api.errors import InvalidInputError
from api.inputs.schema import one_of
from worker.store.watching import queueing

LATEST = timedelta(days=30)


def _branch(value: object) -> str | None:
    if isinstance(value, (str, datetime)):
        return "instant"
    return "seconds" if isinstance(value, (int, float)) and not isinstance(value, bool) else None


StartAfter = Annotated[
    Annotated[AwareDatetime, Field(strict=False), Tag("instant")]
    | Annotated[
        float, Field(ge=0, le=LATEST.total_seconds(), allow_inf_nan=False, strict=False), Tag("seconds")
    ],
    one_of("a date and time with its zone, or a number of seconds", _branch),
    Field(
        description="The batch is stored now and starts then: a date and time with its zone, or a number of"
        f" seconds from now, at most {LATEST.days} days. Its completion window begins with its start."
    ),
]


def to_instant(services: Services, given: datetime | float | None) -> datetime | None:
    """Return when a batch is to start; None: at once, also where the time has come already.

    Raises:
        InvalidInputError: it is too far away.

    """
    if given is None:
        return None
    with services.store.look() as session:
        now = queueing.read_clock(session)
    instant = given if isinstance(given, datetime) else now + timedelta(seconds=given)
    if instant > now + LATEST:
        raise InvalidInputError(
            f"start_after: must be at most {LATEST.days} days away", param="start_after", code="out_of_range"
        )
    return instant if instant > now else None
