"""Serves clients that wait: /v1/generate, /v1/generate/batch, /v1/batch/sync, /v1/model/info."""

from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.batches import service as batches_service
from api.batches.answers import to_times
from api.batches.result_schemas import RequestErrorAnswer
from api.batches.schemas import BatchAnswer
from api.dependencies import READ, SUBMIT, Services, ServicesDependency
from api.errors import ApiError, WaitLimitError, documented, still_running
from api.event_stream import DOCUMENTED
from api.generate.events import DONE, error_event, event, respond
from api.generate.outputs import choices_of, failure
from api.generate.schemas import (
    BatchItemAnswer,
    GenerateAnswer,
    GenerateBatchAnswer,
    GenerateBatchBody,
    GenerateBody,
    ModelInfoAnswer,
    SyncAnswer,
    SyncBody,
    Used,
)
from api.generate.service import cache_of, model_info, to_batch
from api.generate.waiting import GrowingOutputs, InteractiveWork, submitted
from api.guards.large_bodies import OnceRoute
from worker.contract.models import quantization
from worker.store.batches.batches import NewBatch
from worker.store.requests.result_views import ResultView
from worker.values.caching import Source
from worker.values.sampling import Optimization

router = APIRouter(prefix="/v1", tags=["generate"], route_class=OnceRoute)

GENERATE_TOKENS = 100


@router.post(
    "/generate",
    dependencies=[SUBMIT],
    responses={
        HTTPStatus.OK: {"content": DOCUMENTED},
        **documented(400, 401, 403, 413, 422, 429, 500, 503, 504),
    },
    response_model=GenerateAnswer,
    summary="Continue a prompt and wait for it",
)
async def generate(
    body: GenerateBody, http_request: HttpRequest, services: ServicesDependency
) -> GenerateAnswer | StreamingResponse:
    """Continue a prompt; with `stream`, as server-sent events, the last of which is the whole answer."""
    batch = await run_in_threadpool(
        to_batch,
        services,
        body,
        [body.prompt],
        max_tokens=GENERATE_TOKENS,
        optimization=body.optimization,
        cache=cache_of(body.optimization),
    )
    if body.stream:
        return await respond(_stream(services, http_request, batch, body.optimization))
    async with submitted(services, http_request, batch) as work:
        (result,) = await work.results(services.settings.wait_seconds)
    return _to_answer(work, result, body.optimization)


async def _stream(
    services: Services, http_request: HttpRequest, batch: NewBatch, optimization: Optimization
) -> AsyncGenerator[str, None]:
    outputs = GrowingOutputs()
    async with submitted(services, http_request, batch) as work:
        try:
            async for delta in work.told(services.settings.wait_seconds):
                if outputs.take(delta):
                    yield event({"index": delta.index, "text": delta.text})
            (result,) = await work.results(services.settings.wait_seconds)
            answer = _to_answer(work, result, optimization)
            for delta in outputs.rest(result):
                yield event({"index": delta.index, "text": delta.text})
            yield event(answer.model_dump(mode="json"))
            yield DONE
        except ApiError as error:
            yield error_event(error)


@router.post(
    "/generate/batch",
    dependencies=[SUBMIT],
    responses=documented(400, 401, 403, 413, 422, 429, 500, 503, 504),
    summary="Continue prompts and wait for them",
)
async def generate_batch(
    body: GenerateBatchBody, http_request: HttpRequest, services: ServicesDependency
) -> GenerateBatchAnswer:
    """Continue several prompts together; one that fails has its error beside the others' outputs."""
    batch = await run_in_threadpool(
        to_batch,
        services,
        body,
        body.prompts,
        max_tokens=GENERATE_TOKENS,
        optimization=body.optimization,
        cache=cache_of(body.optimization),
    )
    async with submitted(services, http_request, batch) as work:
        results = await work.results(services.settings.wait_seconds)
        seconds = work.seconds
    num_tokens = sum(result.num_output_tokens for result in results)
    return GenerateBatchAnswer(
        batch_id=work.batch_id,
        results=[_to_item(result, body.optimization) for result in results],
        total_latency_ms=round(seconds * 1000, 1),
        throughput_tokens_per_sec=round(num_tokens / seconds, 1),
    )


@router.post(
    "/batch/sync",
    dependencies=[SUBMIT],
    responses={
        HTTPStatus.ACCEPTED: {"model": BatchAnswer, "description": "It takes longer, and goes on."},
        **documented(401, 403, 413, 422, 429, 503),
    },
    response_model=SyncAnswer,
    summary="Submit a small batch and wait for it",
)
async def batch_sync(
    body: SyncBody, http_request: HttpRequest, services: ServicesDependency
) -> SyncAnswer | JSONResponse:
    """Wait for the outputs; a batch that takes longer goes on, and is read as any other."""
    batch = await run_in_threadpool(to_batch, services, body, body.prompts, max_tokens=256)
    async with submitted(services, http_request, batch, keep=True) as work:
        try:
            results = await work.results(body.wait_seconds)
        except WaitLimitError:
            answer = await run_in_threadpool(
                batches_service.answer, services, work.batch_id, include_outputs=False
            )
            return still_running(answer)
        seconds = work.seconds
    num_output_tokens = sum(result.num_output_tokens for result in results)
    return SyncAnswer(
        batch_id=work.batch_id,
        outputs=[_to_output(result) for result in results],
        total_tokens=num_output_tokens + sum(result.num_prompt_tokens for result in results),
        latency_ms=round(seconds * 1000, 1),
        throughput_tokens_per_sec=round(num_output_tokens / seconds, 1),
    )


@router.get(
    "/model/info",
    dependencies=[READ],
    responses=documented(401, 403, 429, 503),
    summary="Look at the engine that runs",
)
def get_model_info(services: ServicesDependency) -> ModelInfoAnswer:
    """Return the engine that runs, as the live workers report it."""
    return model_info(services)


def _to_answer(work: InteractiveWork, result: ResultView, optimization: Optimization) -> GenerateAnswer:
    if (error := failure(result)) is not None:
        raise error
    return GenerateAnswer(**_to_fields(result, optimization), batch_id=work.batch_id)


def _to_item(result: ResultView, optimization: Optimization) -> BatchItemAnswer:
    failed = failure(result)
    error = None
    if failed is not None:
        error = RequestErrorAnswer(code=failed.code or "request_failed", message=failed.message)
    return BatchItemAnswer(**_to_fields(result, optimization), error=error)


def _to_fields(result: ResultView, optimization: Optimization) -> dict[str, Any]:
    """Return the fields of an `OptimizedAnswer`."""
    texts = [choice.text for choice in choices_of(result)]
    model, was_run = result.model, result.source is Source.ENGINE
    return dict(
        optimization_used=optimization,
        used=Used(
            batched=was_run and optimization is not Optimization.NONE,
            prefix_cache=was_run and result.num_cached_tokens > 0,
            response_cache=result.source in {Source.EXACT_CACHE, Source.SEMANTIC_CACHE},
            deduplicated=result.source is Source.DUPLICATE,
            speculation=was_run and result.payload is not None and result.payload.num_right_tokens > 0,
            quantization=None if model is None else quantization(model.weight_format, model.dtype),
        ),
        text=texts[0],
        texts=texts if len(texts) > 1 else None,
        finish_reason=result.finish_reason or "stop",
        tokens_generated=result.num_output_tokens,
        prompt_tokens=result.num_prompt_tokens,
        cached_tokens=result.num_cached_tokens,
        **to_times(result),
    )


def _to_output(result: ResultView) -> Any:
    texts = [choice.text for choice in choices_of(result)]
    return result.output if len(texts) == 1 else texts
