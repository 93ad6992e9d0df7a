"""Makes, reads, cancels and deletes responses. Each function is one transaction."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.orm import Session

from api import json_lines
from api.batches.caching import default_cache
from api.dependencies import IdempotencyKey, Services
from api.errors import InvalidInputError, KeyReusedError, NotFoundError
from api.inputs.cursors import cut
from api.inputs.tool_loops import refuse_endpoint
from api.responses.answers import Asked, batch_of, ended, name_of, status_of_batch, unfinished
from api.responses.bodies import ResponseBody
from api.responses.items import stored_items
from api.responses.requests import fitted, to_request
from worker.store.batches import batch_views, batches, idempotency, responses
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.batches.responses import NewResponse, StoredResponse
from worker.store.database.cursors import UnknownCursorError
from worker.store.requests import result_views
from worker.store.requests.result_views import ResultView
from worker.store.shards import control
from worker.values.caching import CacheMode
from worker.values.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Found:
    """A stored response, its batch, and its Result once there is one."""

    response: StoredResponse
    batch: BatchView
    result: ResultView | None

    @property
    def asked(self) -> Asked:
        """What the response is for."""
        return Asked(name_of(self.batch.id), self.response.request, self.batch.created_at)


def prepare(services: Services, body: ResponseBody) -> tuple[NewBatch, NewResponse]:
    """Check a body and return the batch and the response that it asks for.

    Raises:
        InvalidInputError: a field is wrong, or the conversation does not fit the model.
        ModelNotFoundError: another model is served.

    """
    _check(body)
    batch_id = batches.new_id()
    items = [*_earlier_items(services, body), *stored_items(body.input, name_of(batch_id))]
    request = to_request(services.checkpoint, body, items)
    request = fitted(services.checkpoint, request, max_prompt_bytes=services.settings.max_prompt_bytes)
    echo = body.echo()
    new = NewResponse(
        batch_id=batch_id,
        request=echo,
        items=items,
        num_bytes=len(json_lines.dumps([echo, items]).encode()),
        is_stored=body.is_stored,
    )
    batch = NewBatch(
        id=batch_id,
        params=SamplingParams(),
        requests=[request],
        priority=body.priority or 0,
        metadata=dict(body.metadata or {}),
        cache=default_cache(services) if body.is_stored else CacheMode.OFF,
        model=request.model,
    )
    return batch, new


def submit(services: Services, body: ResponseBody, key: IdempotencyKey | None) -> str:
    """Store a background response and return its batch's id; a retry with the same key finds the first one.

    Raises:
        InvalidInputError: a field is wrong.
        KeyReusedError: the idempotency key was used for another body.
        QuotaExceededError: the tenant's quotas have no room for it.

    """
    batch, new = prepare(services, body)
    with services.store.transaction() as session:
        batch_id = None if key is None else _find_submitted(session, key)
        if batch_id is None:
            batch_id = batches.submit(session, batch, shard_size=services.settings.shard_sizes[0])
            responses.add(session, new)
            if key is not None:
                idempotency.remember(session, key.key, key.fingerprint, batch_id)
    return batch_id


def get(services: Services, response_id: str) -> dict[str, Any]:
    """Return a response as it stands now; raises NotFoundError."""
    with services.store.look() as session:
        found = find(session, response_id)
    return answer(services, found)


def answer(services: Services, found: Found) -> dict[str, Any]:
    """Return a response as its client reads it."""
    if found.result is not None:
        return ended(services.checkpoint, found.asked, found.result)
    return unfinished(services.checkpoint, found.asked, status_of_batch(found.batch))


def find(session: Session, response_id: str) -> Found:
    """Read a stored response.

    Raises:
        NotFoundError: there is none.

    """
    batch_id = batch_of(response_id)
    stored = responses.get(session, batch_id) if response_id.startswith("resp_") else None
    view = None if stored is None else batch_views.get(session, batch_id)
    if stored is None or view is None:
        raise NotFoundError(f"There is no response {response_id}.", param="response_id")
    results = result_views.page(session, batch_id, after=0, limit=1)
    return Found(stored, view, results[0] if results else None)


def cancel(services: Services, response_id: str) -> None:
    """Ask a background response to stop; one that has ended stays as it is.

    Raises:
        NotFoundError: no such response.
        InvalidInputError: it does not run in the background.

    """
    with services.store.transaction() as session:
        found = find(session, response_id)
        if not found.response.request.get("background"):
            raise InvalidInputError(
                f"{response_id} was not made with `background`. To stop it, close the connection that waits"
                " for it.",
                param="response_id",
            )
        batches.cancel(session, found.batch.id)


def remove(services: Services, response_id: str) -> None:
    """Delete a response, its conversation and its output; one that runs is cancelled first.

    Raises:
        NotFoundError: no such response.

    """
    with services.store.transaction() as session:
        batch_id = find(session, response_id).batch.id
        batches.cancel(session, batch_id)
        forget(session, batch_id)


def forget(session: Session, batch_id: str) -> None:
    """Delete a response and its batch now, or as soon as the batch has ended."""
    if control.remove(session, batch_id) is control.Done.BATCH_IS_LIVE:
        responses.hide(session, batch_id)


def page_of_items(
    services: Services, response_id: str, *, after: str | None, limit: int, order: Literal["asc", "desc"]
) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of the items that a response was made from, and whether there are more.

    Raises:
        NotFoundError: no such response.
        UnknownCursorError: it has no item `after`.

    """
    with services.store.look() as session:
        items = find(session, response_id).response.items
    if order == "desc":
        items = items[::-1]
    if after is not None:
        start = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if start is None:
            raise UnknownCursorError(after)
        items = items[start + 1 :]
    return cut(items[: limit + 1], limit)


def _check(body: ResponseBody) -> None:
    for name, is_wrong, why in (
        ("store", body.background and not body.is_stored, "must not be false with background"),
        ("stream_options", body.stream_options and not body.stream, "requires stream to be true"),
    ):
        if is_wrong:
            raise InvalidInputError(f"{name}: {why}", param=name)
    refuse_endpoint(body.tool_endpoint)


def _earlier_items(services: Services, body: ResponseBody) -> list[dict[str, Any]]:
    """Return the conversation that a response continues."""
    name = "previous_response_id"
    if body.previous_response_id is None:
        return []
    with services.store.look() as session:
        try:
            found = find(session, body.previous_response_id)
        except NotFoundError as error:
            raise InvalidInputError(
                f"{name}: {error.message}", param=name, code="previous_response_not_found"
            ) from error
    told = answer(services, found)
    if told["status"] not in {"completed", "incomplete"}:
        raise InvalidInputError(
            f"{name}: {body.previous_response_id} is {told['status']}; only a response that was completed can"
            " be continued",
            param=name,
        )
    for item in told["output"]:
        for part in item.get("content", ()):
            part.pop("logprobs", None)  # of one response, not of the conversation
    return [*found.response.items, *told["output"]]


def _find_submitted(session: Session, key: IdempotencyKey) -> str | None:
    try:
        return idempotency.find(session, key.key, key.fingerprint)
    except idempotency.FingerprintMismatchError as error:
        raise KeyReusedError(
            "This Idempotency-Key was used for another body. Choose a new key.", param="Idempotency-Key"
        ) from error
