"""Serves /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models to OpenAI's clients."""

from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.batches.caching import default_cache
from api.dependencies import READ, SUBMIT, Services, ServicesDependency
from api.errors import OPENAI_STATUSES, documented
from api.event_stream import DOCUMENTED
from api.generate.events import respond
from api.generate.outputs import failure
from api.generate.waiting import submitted
from api.guards.large_bodies import OnceRoute
from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.inputs.prompts import fit
from api.inputs.schema import Text
from api.inputs.tool_loops import refuse_endpoint
from api.openai.answer_schemas import ChatCompletion, Embeddings, ModelAnswer, ModelList, TextCompletion
from api.openai.answers import to_answer, to_model
from api.openai.bodies import Body, ChatBody, CompletionBody, EmbeddingBody, Endpoint, StreamOptions
from api.openai.requests import prompts_field, to_request
from api.openai.streaming import chunks
from worker.contract.processes import ModelState
from worker.store.batches.batches import NewBatch
from worker.store.watching import workers
from worker.values.sampling import SamplingParams

router = APIRouter(prefix="/v1", tags=["openai"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES])

ERRORS = documented(400, 401, 403, 404, 413, 429, 500, 503, 504)


def _answers(whole: type[BaseModel], *, streams: bool = True) -> dict[int | str, dict[str, Any]]:
    found: dict[str, Any] = {"model": whole}
    if streams:
        found["content"] = DOCUMENTED
    return {HTTPStatus.OK: found, **ERRORS}


@router.post(
    "/chat/completions",
    dependencies=[SUBMIT],
    responses=_answers(ChatCompletion),
    response_model=None,
    summary="Complete a chat",
)
async def chat_completions(
    body: ChatBody, http_request: HttpRequest, services: ServicesDependency
) -> JSONResponse | StreamingResponse:
    """Answer a conversation, whole or as a stream of server-sent events."""
    return await _complete(services, http_request, Endpoint.CHAT_COMPLETIONS, body)


@router.post(
    "/completions",
    dependencies=[SUBMIT],
    responses=_answers(TextCompletion),
    response_model=None,
    summary="Complete prompts",
)
async def completions(
    body: CompletionBody, http_request: HttpRequest, services: ServicesDependency
) -> JSONResponse | StreamingResponse:
    """Continue prompts, whole or as a stream of server-sent events."""
    return await _complete(services, http_request, Endpoint.COMPLETIONS, body)


@router.post(
    "/embeddings",
    dependencies=[SUBMIT],
    responses=_answers(Embeddings, streams=False),
    response_model=None,
    summary="Embed texts",
)
async def embeddings(
    body: EmbeddingBody, http_request: HttpRequest, services: ServicesDependency
) -> JSONResponse:
    """Turn texts into vectors."""
    batch = await run_in_threadpool(_to_batch, services, body)
    return await _whole(services, http_request, Endpoint.EMBEDDINGS, batch)


@router.get(
    "/models", dependencies=[READ], responses=documented(401, 403, 429, 503), summary="List the models"
)
def models(services: ServicesDependency) -> ModelList:
    """List the models that are served, each under each of its names."""
    found = []
    for checkpoint in services.checkpoint.served:
        status = _status(services, checkpoint)
        found += [to_model(checkpoint, name, status) for name in checkpoint.names]
    return ModelList(object="list", data=found, has_more=False, first_id=found[0].id, last_id=found[-1].id)


@router.get(
    "/models/{model}",
    dependencies=[READ],
    responses=documented(401, 403, 404, 429, 503),
    summary="Look at a model",
)
def get_model(
    model: Annotated[Text, Path(max_length=256, examples=["demo"])], services: ServicesDependency
) -> ModelAnswer:
    """Return the model of this name or alias."""
    checkpoint = find_checkpoint(services.checkpoint, model)
    return to_model(checkpoint, model, _status(services, checkpoint))


def _status(services: Services, checkpoint: Checkpoint) -> ModelState:
    with services.store.transaction() as session:
        return workers.state_of(session, checkpoint.model.fingerprint)


async def _complete(
    services: Services, http_request: HttpRequest, endpoint: Endpoint, body: ChatBody | CompletionBody
) -> JSONResponse | StreamingResponse:
    batch = await run_in_threadpool(_to_batch, services, body)
    if not body.stream:
        return await _whole(services, http_request, endpoint, batch)
    options = body.stream_options or StreamOptions()
    return await respond(_stream(services, http_request, endpoint, batch, options))


def _to_batch(services: Services, body: Body) -> NewBatch:
    if isinstance(body, ChatBody):
        refuse_endpoint(body.tool_endpoint)
    request = to_request(services.checkpoint, body)
    field = prompts_field(body)
    fitted = fit(
        services.checkpoint,
        [request],
        default=SamplingParams(),
        max_prompt_bytes=services.settings.max_prompt_bytes,
        name=lambda _: field,
    )
    return NewBatch(
        params=SamplingParams(),
        requests=fitted,
        cache=default_cache(services),
        model=request.model,
    )


async def _whole(
    services: Services, http_request: HttpRequest, endpoint: Endpoint, batch: NewBatch
) -> JSONResponse:
    async with submitted(services, http_request, batch) as work:
        (result,) = await work.results(services.settings.wait_seconds)
    if (error := failure(result)) is not None:
        raise error
    return JSONResponse(to_answer(services.checkpoint, endpoint, result, batch_id=work.batch_id))


async def _stream(
    services: Services,
    http_request: HttpRequest,
    endpoint: Endpoint,
    batch: NewBatch,
    options: StreamOptions,
) -> AsyncGenerator[str, None]:
    async with submitted(services, http_request, batch) as work:
        found = chunks(
            work,
            services.checkpoint.serving(batch.model),
            endpoint,
            options,
            wait_seconds=services.settings.wait_seconds,
            request=batch.requests[0],
        )
        async for chunk in found:
            yield chunk
