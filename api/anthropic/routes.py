"""Serves /v1/messages to unmodified clients of Anthropic's."""

from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.anthropic.answer_schemas import MessageAnswer, MessageTokens
from api.anthropic.answers import to_message
from api.anthropic.bodies import CountedMessage, NewMessage
from api.anthropic.requests import to_counted, to_message_request
from api.anthropic.streaming import message_events
from api.anthropic_errors import AnthropicErrorBody
from api.batches.caching import default_cache
from api.dependencies import SUBMIT, Services, ServicesDependency
from api.errors import OPENAI_STATUSES, REQUEST_ID_STATE, documented
from api.event_stream import DOCUMENTED
from api.generate.events import respond
from api.generate.outputs import failure
from api.generate.waiting import submitted
from api.guards.large_bodies import OnceRoute
from api.inputs.prompts import check_size, fit
from api.inputs.tool_loops import refuse_endpoint
from worker.store.batches.batches import NewBatch
from worker.values.sampling import SamplingParams

router = APIRouter(
    prefix="/v1/messages", tags=["anthropic"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES]
)

ANSWERS: dict[int | str, dict[str, Any]] = {
    HTTPStatus.OK: {"model": MessageAnswer, "content": DOCUMENTED},
    **documented(400, 401, 403, 404, 413, 429, 500, 503, 504, body=AnthropicErrorBody),
}


@router.post(
    "", dependencies=[SUBMIT], responses=ANSWERS, response_model=None, summary="Generate the next message"
)
async def create_message(
    body: NewMessage, http_request: HttpRequest, services: ServicesDependency
) -> JSONResponse | StreamingResponse:
    """Answer a conversation, whole or as a stream of server-sent events."""
    batch = await run_in_threadpool(_to_batch, services, body)
    if body.stream:
        return await respond(_stream(services, http_request, batch))
    async with submitted(services, http_request, batch) as work:
        (result,) = await work.results(services.settings.wait_seconds)
    if (error := failure(result)) is not None:
        raise error
    return JSONResponse(to_message(services.checkpoint, result, batch_id=work.batch_id))


@router.post(
    "/count_tokens",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 404, 413, 429, 503, body=AnthropicErrorBody),
    summary="Count the tokens of a prompt",
)
def count_message_tokens(body: CountedMessage, services: ServicesDependency) -> MessageTokens:
    """Count the tokens that the engine would see of a conversation."""
    request = to_counted(services.checkpoint, body)
    check_size(request.prompt, services.settings.max_prompt_bytes, "messages")
    checkpoint = services.checkpoint.serving(request.model)
    counts = checkpoint.count_tokens([request.prompt], add_special_tokens=request.add_special_tokens)
    return MessageTokens(input_tokens=sum(counts))


def _to_batch(services: Services, body: NewMessage) -> NewBatch:
    refuse_endpoint(body.tool_endpoint)
    fitted = fit(
        services.checkpoint,
        [to_message_request(services.checkpoint, body)],
        default=SamplingParams(),
        max_prompt_bytes=services.settings.max_prompt_bytes,
        name=lambda _: "messages",
    )
    return NewBatch(
        params=SamplingParams(),
        requests=fitted,
        cache=default_cache(services),
        model=fitted[0].model,
    )


async def _stream(
    services: Services, http_request: HttpRequest, batch: NewBatch
) -> AsyncGenerator[str, None]:
    (request,) = batch.requests
    async with submitted(services, http_request, batch) as work:
        found = message_events(
            work,
            services.checkpoint.serving(batch.model),
            wait_seconds=services.settings.wait_seconds,
            num_prompt_tokens=request.num_prompt_tokens,
            parsing=request.params.parsing if isinstance(request.params, SamplingParams) else None,
            request_id=http_request.scope["state"][REQUEST_ID_STATE],
        )
        async for one in found:
            yield one
