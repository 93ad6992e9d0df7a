"""Tracks which requests of a run are out of time. Their results say so, with the output they have."""

import time
from collections.abc import Iterable
from dataclasses import replace

from worker.store.requests.requests import ShardRequest
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import TIMEOUT, NewResult


class Timeouts:
    """The requests of one run that have a timeout, by the time at which it ends."""

    def __init__(self, requests: Iterable[ShardRequest]) -> None:
        self._at = {one.id: one.timeout_at for one in requests if one.timeout_at is not None}
        self.expired: set[int] = set()

    @property
    def next_at(self) -> float:
        """`time.monotonic()` when the next request is out of time; infinite if none will be."""
        return min(self._at.values(), default=float("inf"))

    def done(self, request_id: int) -> None:
        """Forget a request that has its result."""
        self._at.pop(request_id, None)

    def take_expired(self) -> set[int]:
        """Return the requests that are out of time, each once."""
        now = time.monotonic()
        found = {request_id for request_id, at in self._at.items() if at <= now}
        for request_id in found:
            del self._at[request_id]
        self.expired |= found
        return found


def timed_out(result: NewResult) -> NewResult:
    """Return the result of a request that ran out of time, from that of one that was cut off."""
    return replace(result, outcome=Outcome.FAILED, finish_reason=FinishReason.ERROR, error=TIMEOUT)
