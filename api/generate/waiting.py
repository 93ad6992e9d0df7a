"""Submits interactive work and follows its outputs. The rows are the truth; the feed only saves time."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
from fastapi import Request as HttpRequest
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.dependencies import Services
from api.errors import ClientGoneError, NotFoundError, NoWorkerError, RequestFailedError, WaitLimitError
from api.generate.outputs import choices_of
from worker.contract.messages import GPU_QUEUE
from worker.contract.states import Lane
from worker.queue.feed import Feed
from worker.store.batches import batch_views, batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import DATABASE_AWAY
from worker.store.requests import result_views
from worker.store.requests.result_views import ResultView
from worker.store.watching import workers
from worker.values.delta import Delta

logger = logging.getLogger(__name__)

# The first pause between two looks at the rows, and the longest while the feed is up but silent.
LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.5, 2.0
MOST_RESULTS = 10_000


@dataclass(slots=True)
class InteractiveWork:
    """Interactive work that was submitted."""

    services: Services
    http_request: HttpRequest
    batch_id: str
    num_requests: int
    feed: Feed
    started_at: float = field(default_factory=time.monotonic)
    is_settled: bool = False

    @property
    def seconds(self) -> float:
        """The seconds that the work has taken so far."""
        return time.monotonic() - self.started_at

    async def told(self, wait_seconds: float) -> AsyncIterator[Delta]:
        """Yield the messages of the feed until every request has its result.

        Raises:
            WaitLimitError: that took longer than `wait_seconds`; the work goes on.
            ClientGoneError: the client has disconnected.

        """
        asked_at, pause = time.monotonic(), LOOK_SECONDS
        while not self.is_settled:
            left = wait_seconds - self.seconds
            if left <= 0:
                raise WaitLimitError(
                    f"The work took longer than {wait_seconds:g} s. Ask for fewer tokens, or submit a batch.",
                    code="wait_limit",
                )
            message = await self.feed.next(min(pause, left))
            is_silent = message is None and self.services.feeds.is_there
            pause = min(2 * pause, LONGEST_LOOK_SECONDS) if is_silent else LOOK_SECONDS
            if isinstance(message, Delta):
                yield message
                if time.monotonic() - asked_at < LOOK_SECONDS:
                    continue
            else:
                self.is_settled = await run_in_threadpool(self._look)
            asked_at = time.monotonic()
            if not self.is_settled and await self.http_request.is_disconnected():
                raise ClientGoneError("The client has disconnected.")

    async def results(self, wait_seconds: float) -> list[ResultView]:
        """Wait for every result; return them in the order of the requests; raises as `told` does."""
        async for _ in self.told(wait_seconds):
            pass
        while True:
            try:
                return await run_in_threadpool(self._results)
            except DATABASE_AWAY as error:
                if self.seconds > wait_seconds:
                    raise WaitLimitError(
                        f"The result could not be read within {wait_seconds:g} s. Try again.",
                        code="wait_limit",
                    ) from error
                await anyio.sleep(LOOK_SECONDS)

    def _look(self) -> bool:
        try:
            with self.services.store.look() as session:
                view = batch_views.get(session, self.batch_id)
        except DATABASE_AWAY as error:  # the work goes on, or will
            logger.warning("%s is not followed for a while: %s", self.batch_id, str(error).splitlines()[0])
            return False
        return view is None or view.status.is_terminal

    def _results(self) -> list[ResultView]:
        with self.services.store.transaction() as session:
            found = result_views.page(session, self.batch_id, after=0, limit=MOST_RESULTS)
        if not found:
            raise NotFoundError(f"{self.batch_id} was deleted before its results were read.")
        return sorted(found, key=lambda result: result.position)

    def cancel(self) -> None:
        """Cancel the rest of the work, as no client waits for it. If Postgres is away, it runs to its end."""
        try:
            with self.services.store.transaction() as session:
                batches.cancel(session, self.batch_id)
        except DATABASE_AWAY as error:
            logger.warning("%s is not cancelled: %s", self.batch_id, str(error).splitlines()[0])


@dataclass(slots=True)
class _Told:
    told: str = ""
    num_tokens: int = 0
    is_finished: bool = False
    has_gap: bool = False


@dataclass(slots=True)
class GrowingOutputs:
    """Passes on text that continues what it has; after a gap it waits for the result, which has all of it."""

    num_tokens: int = 0  # told so far, over all choices
    _choices: dict[int, _Told] = field(default_factory=dict)

    def take(self, delta: Delta) -> bool:
        """Add a part of a choice; return whether it is new and comes after no gap."""
        choice = self._choices.setdefault(delta.index, _Told())
        if choice.has_gap or delta.offset != len(choice.told):
            choice.has_gap = True
            return False
        if not (delta.text or delta.finish_reason or delta.logprobs or delta.token_ids):
            return False
        choice.told += delta.text
        choice.num_tokens += delta.num_tokens
        self.num_tokens += delta.num_tokens
        choice.is_finished = delta.finish_reason is not None
        return True

    def rest(self, result: ResultView) -> Iterator[Delta]:
        """Yield the parts of a completed result that were not streamed.

        Raises:
            RequestFailedError: the result differs from what was streamed, as when a worker died and the next
                one drew other tokens.

        """
        for index, whole in enumerate(choices_of(result)):
            choice = self._choices.setdefault(index, _Told())
            if not choice.is_finished:
                logprobs = None if whole.logprobs is None else whole.logprobs[choice.num_tokens :]
                if not whole.text.startswith(choice.told):
                    raise RequestFailedError(
                        "The output was generated again after a failure and differs from what was streamed.",
                        code="stream_interrupted",
                    )
                text = whole.text[len(choice.told) :]
                yield Delta(
                    result.position,
                    index,
                    len(choice.told),
                    text,
                    logprobs=logprobs,
                    finish_reason=whole.finish_reason,
                    token_ids=whole.token_ids[choice.num_tokens :],
                )
                choice.is_finished = True


@asynccontextmanager
async def submitted(
    services: Services,
    http_request: HttpRequest,
    batch: NewBatch,
    *,
    keep: bool = False,
    lane: Lane = Lane.INTERACTIVE,
    beside: Callable[[Session], None] | None = None,
) -> AsyncIterator[InteractiveWork]:
    """Submit interactive work; on exit, cancel what is left of it unless `keep` is true.

    `beside` writes what belongs to the batch, in the same transaction.

    Raises:
        NoWorkerError: no worker is alive, so nothing was submitted; never with `keep`.

    """
    batch = replace(batch, id=batch.id or batches.new_id(), lane=lane)
    assert batch.id is not None  # noqa: S101 - it was given just now
    async with services.feeds.open(batch.id) as feed:
        work = InteractiveWork(services, http_request, batch.id, len(batch.requests), feed)
        try:
            await run_in_threadpool(_submit, services, batch, needs_worker=not keep, beside=beside)
        except DATABASE_AWAY:  # perhaps after the commit, but the client will never know
            await run_in_threadpool(work.cancel)
            raise
        try:
            yield work
        finally:
            if not (work.is_settled or keep):
                with anyio.CancelScope(shield=True):
                    await run_in_threadpool(work.cancel)


def _submit(
    services: Services,
    batch: NewBatch,
    *,
    needs_worker: bool,
    beside: Callable[[Session], None] | None = None,
) -> None:
    with services.store.transaction() as session:
        model = batch.model or services.checkpoint.model
        is_served = workers.slots(session, GPU_QUEUE, model=model.fingerprint) or workers.may_load(
            session, model.fingerprint
        )
        if needs_worker and not is_served:
            raise NoWorkerError(f"No worker serves {model.label} now. Nothing was accepted. Try again.")
        batches.submit(session, batch, shard_size=services.settings.shard_sizes[0])
        if beside is not None:
            beside(session)
