"""Explains to a client why a batch is not running."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from types import MappingProxyType

from sqlalchemy.orm import Session

from api.batches.progress_schemas import WaitingAnswer
from worker.contract.models import label
from worker.contract.states import BatchStatus
from worker.store.batches.batch_views import BatchView
from worker.store.files import batch_files
from worker.store.watching import queueing, workers
from worker.store.watching.queueing import Ahead, Capacity


@dataclass(frozen=True, slots=True)
class PlaceInLine:
    """The work ahead of a waiting batch, and the workers that could run it."""

    ahead: Ahead
    capacity: Capacity
    has_no_reader: bool = False  # no process reads the file that its requests come from
    may_load: bool = False  # a worker of several models loads this one when its turn comes

    @property
    def readiness(self) -> tuple[bool, bool, bool]:
        """What compares higher if the model's workers run it sooner."""
        return bool(self.capacity.num_ready), bool(self.capacity.num_loading), self.may_load


Lines = Mapping[str | None, PlaceInLine]  # by model
NO_LINES: Lines = MappingProxyType({})


def read_lines(session: Session, view: BatchView) -> Lines:
    """Return the lines in which a batch waits, for each model that runs none of it and has work left."""
    if view.status.is_terminal:
        return NO_LINES
    waits = [one for one in view.by_model() or [view] if not one.num_running_shards]
    return {one.model_fingerprint: _read_line(session, one) for one in waits}


def _read_line(session: Session, view: BatchView) -> PlaceInLine:
    model = view.model_fingerprint
    ahead = queueing.ahead_of(
        session, priority=view.priority, expires_at=view.expires_at, batch_id=view.id, model=model
    )
    has_no_reader = bool(view.num_unread) and batch_files.has_no_reader(session, view.id)
    may_load = model is not None and workers.may_load(session, model)
    return PlaceInLine(ahead, queueing.capacity(session, model=model), has_no_reader, may_load)


def explain_all(view: BatchView, lines: Lines) -> WaitingAnswer | None:
    """Return why no request of a batch runs; None if some does, or the batch has ended.

    Of a mixed batch, that is the reason of the model whose workers are nearest to run it.
    """
    if view.num_running_shards:
        return None
    waits = [one for one in view.by_model() or [view] if one.model_fingerprint in lines]
    if not waits:
        return None
    first = max(waits, key=lambda one: lines[one.model_fingerprint].readiness)
    return explain(first, lines[first.model_fingerprint])


def explain(view: BatchView, line: PlaceInLine | None) -> WaitingAnswer | None:
    """Return why no request of a batch runs; None if the batch does not wait."""
    if line is None:
        return None
    if held_back := _held_back(view):
        return held_back
    capacity = line.capacity
    is_served = capacity.num_ready or capacity.num_loading or line.may_load
    if capacity.num_others and not is_served and view.model_name and view.model_fingerprint:
        message = f"no worker serves {label(view.model_name, view.model_fingerprint)}"
        return WaitingAnswer(reason="no_worker", message=message)
    if view.num_unread == view.num_requests:
        if line.has_no_reader:
            message = "its file is not read yet: the files process is busy or does not run"
            return WaitingAnswer(reason="file_unread", message=message)
        return WaitingAnswer(reason="reading_file", message="its file is being read")
    ahead = line.ahead
    place = {
        "position": ahead.num_batches + 1,
        "batches_ahead": ahead.num_batches,
        "requests_ahead": ahead.num_requests,
    }
    if not capacity.num_ready:
        if capacity.num_loading:
            return WaitingAnswer(reason="model_loading", message="the workers are loading the model", **place)
        if line.may_load:
            message = "a worker that runs another model loads this one when its turn comes"
            return WaitingAnswer(reason="model_unloaded", message=message, **place)
        return WaitingAnswer(reason="no_worker", message="no gpu worker is running", **place)
    if ahead.num_batches:
        message = f"{ahead.num_requests} requests of {ahead.num_batches} batches run before it"
        return WaitingAnswer(reason="in_line", message=message, **place)
    return WaitingAnswer(reason="starting", message="it starts as soon as a worker has room", **place)


def _held_back(view: BatchView) -> WaitingAnswer | None:
    """Return why a batch may not run whatever waits before it; None if it may."""
    if view.status is BatchStatus.CANCELLING:
        return WaitingAnswer(reason="stopping", message="the batch is stopping")
    if view.is_scheduled and view.start_after is not None:
        start = view.start_after.astimezone(UTC)
        message = f"it starts at {start:%Y-%m-%dT%H:%M:%SZ}; resume it to start it now"
        return WaitingAnswer(reason="scheduled", message=message)
    if view.paused_at is not None:
        return WaitingAnswer(reason="paused", message="the batch is paused; resume it to go on")
    return None
