"""Converts stored rows to the answers that clients read."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from api.batches.eta import Forecasters, estimate, expected_tokens
from api.batches.progress_schemas import EtaRange, RequestAttemptAnswer
from api.batches.result_schemas import (
    ChoiceAnswer,
    ParsedMessage,
    RequestAnswer,
    RequestErrorAnswer,
    RequestUsage,
    ResultAnswer,
    ResultModel,
    ScoreAnswer,
    TokenAnswer,
)
from api.batches.schemas import (
    BatchAnswer,
    BatchModel,
    Callback,
    Counts,
    InputTokensDetails,
    ModelPartAnswer,
    Tokens,
    Usage,
)
from api.batches.tool_turns import to_tool_turns
from api.batches.waiting import NO_LINES, Lines, explain, explain_all
from api.figures import DeviceTime, to_cost, to_device_time
from api.inputs.checkpoint import Checkpoint, Spelling
from api.parsing.messages import finish_reason, to_message
from worker.store.batches.batch_views import BatchView, ModelPart
from worker.store.requests.attempts import RequestAttemptView
from worker.store.requests.models import ServedModelView
from worker.store.requests.request_views import RequestView
from worker.store.requests.result_views import ResultView
from worker.store.webhooks.delivery_log import DeliveryView
from worker.values.logprobs import Logprobs
from worker.values.outcomes import FinishReason
from worker.values.results import (
    Choice,
    ContinuationScore,
    DeviceSeconds,
    Output,
    Payload,
    to_floats,
)

# Fields that a batch's answer takes from its view as they are.
SAME_FIELDS = (
    "status", "retry_of", "experiment_id", "max_failed", "max_total_tokens", "priority", "name", "metadata",
    "start_after", "created_at", "started_at", "expires_at", "finished_at", "results_dropped_at",
)  # fmt: skip


def to_answer(
    view: BatchView,
    delivery: DeliveryView | None,
    outputs: list[Output] | None,
    *,
    currency: str,
    lines: Lines = NO_LINES,
    forecasters: Forecasters,
) -> BatchAnswer:
    """Return a batch as the client sees it.

    `outputs=None` leaves the outputs out. `lines` has the models that the batch waits for.
    """
    eta = estimate(view, forecasters)
    return BatchAnswer(
        **{name: getattr(view, name) for name in SAME_FIELDS},
        batch_id=view.id,
        tenant=view.tenant_id,
        model=_to_batch_model(view),
        models=[_to_part(view, part, lines, currency) for part in view.parts] if view.is_mixed else None,
        progress=round(view.progress, 4),
        counts=Counts.model_validate(view),
        tokens=Tokens(
            done=view.output_tokens + view.running_tokens,
            expected=expected_tokens(view, forecasters),
            max=view.max_output_tokens,
        ),
        usage=Usage(
            input_tokens=view.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=view.cached_tokens),
            output_tokens=view.output_tokens,
            total_tokens=view.input_tokens + view.output_tokens,
            device_seconds=_to_device_time(view.seconds),
            cost=to_cost(view.cost_billionths, currency),
        ),
        deduplicated=view.num_deduplicated,
        cached=view.num_cache_hits,
        eta_seconds=None if eta is None else eta.seconds,
        eta_range=None if eta is None else EtaRange(low_seconds=eta.low, high_seconds=eta.high),
        waiting=explain_all(view, lines),
        paused=view.is_paused,
        error=_to_error(view),
        callback=_to_callback(view, delivery),
        outputs=outputs,
    )


def _to_error(view: BatchView | ResultView) -> RequestErrorAnswer | None:
    if view.error_code is None:
        return None
    return RequestErrorAnswer(code=view.error_code, message=view.error_message or "")


def _to_batch_model(view: BatchView) -> BatchModel | None:
    if view.model_name is None or view.model_fingerprint is None:
        return None
    return BatchModel(name=view.model_name, revision=view.model_fingerprint)


def _to_part(view: BatchView, part: ModelPart, lines: Lines, currency: str) -> ModelPartAnswer:
    waits = [one for one in view.by_model() if one.model_fingerprint == part.model_fingerprint]
    return ModelPartAnswer(
        name=part.model_name,
        revision=part.model_fingerprint,
        counts=Counts.model_validate(part),
        input_tokens=part.input_tokens,
        cached_tokens=part.cached_tokens,
        output_tokens=part.output_tokens,
        cost=to_cost(part.cost_billionths, currency),
        waiting=explain(waits[0], lines.get(part.model_fingerprint)) if waits else None,
    )


def _to_device_time(seconds: DeviceSeconds) -> DeviceTime:
    return to_device_time(seconds.prefill, seconds.decode, seconds.padding)


def _to_callback(view: BatchView, delivery: DeliveryView | None) -> Callback | None:
    if view.callback_url is None:
        return None
    if delivery is None:
        return Callback(url=view.callback_url)
    return Callback.model_validate(delivery).model_copy(update={"url": view.callback_url})


def to_result(
    row: ResultView,
    checkpoint: Checkpoint,
    attempts: Sequence[RequestAttemptView] = (),
    request: RequestView | None = None,
) -> ResultAnswer:
    """Return one result as the client sees it; the checkpoint spells the tokens."""
    payload = row.payload or Payload()
    message = None if row.output is None else _to_message(row, 0, row.output, row.finish_reason)
    model = None if row.model is None else to_result_model(row.model)
    spelling = checkpoint.spelling_of(None if model is None else model.revision)
    return ResultAnswer(
        sequence=row.sequence,
        index=row.position,
        custom_id=row.custom_id,
        status=row.outcome,
        output=row.output,
        finish_reason=row.finish_reason if message is None else message[1],
        message=None if message is None else message[0],
        choices=[_to_choice(row, i, choice, spelling) for i, choice in enumerate(payload.choices)] or None,
        prompt_logprobs=next((_to_tokens(one, spelling) for one in payload.prompt_logprobs), None),
        tool_turns=to_tool_turns(row),
        embedding=next((to_floats(vector) for vector in payload.embeddings), None),
        scores=[_to_score(score) for score in payload.scores] or None,
        usage=RequestUsage(
            input_tokens=row.num_prompt_tokens,
            cached_tokens=row.num_cached_tokens,
            output_tokens=row.num_output_tokens,
            guessed_tokens=payload.num_guessed_tokens,
            right_tokens=payload.num_right_tokens,
            device_seconds=_to_device_time(row.seconds),
        ),
        model=model,
        source=row.source,
        similarity=row.similarity,
        hit_is_right=row.hit_is_right,
        error=_to_error(row),
        request=None if request is None else RequestAnswer.model_validate(request),
        attempts=[RequestAttemptAnswer.model_validate(one, from_attributes=True) for one in attempts],
        **to_times(row),
    )


def to_times(row: ResultView) -> dict[str, Any]:
    """Return the fields of `Times` for a result."""
    waited = row.queue_wait
    return {
        "created_at": row.accepted_at,
        "started_at": row.started_at,
        "completed_at": row.created_at,
        "queue_ms": None if waited is None else _milliseconds(waited),
        "latency_ms": _milliseconds(row.latency),
    }


def _milliseconds(time: timedelta) -> float:
    return round(time.total_seconds() * 1000, 1)


def to_result_model(model: ServedModelView) -> ResultModel:
    """Return the model that made a result."""
    return ResultModel(
        name=model.name, revision=model.fingerprint, weight_format=model.weight_format, dtype=model.dtype
    )


def _to_choice(row: ResultView, index: int, choice: Choice, spelling: Spelling) -> ChoiceAnswer:
    message = _to_message(row, index, choice.text, choice.finish_reason)
    return ChoiceAnswer(
        text=choice.text,
        message=None if message is None else message[0],
        finish_reason=choice.finish_reason if message is None else message[1] or "",
        logprobs=None if choice.logprobs is None else _to_tokens(choice.logprobs, spelling),
    )


def _to_message(
    row: ResultView, index: int, text: str, reason: str | None
) -> tuple[ParsedMessage, str | None] | None:
    """Return what an output says, and why it ended; None if its request has nothing to parse."""
    if row.parsing is None:
        return None
    found = to_message(text, row.parsing, seed=f"{row.request_id}-{index}")
    ended = finish_reason(
        None if reason is None else FinishReason(reason), row.parsing, has_calls="tool_calls" in found
    )
    return ParsedMessage.model_validate(found), ended


def _to_tokens(logprobs: Logprobs, spelling: Spelling) -> list[TokenAnswer]:
    return [
        TokenAnswer(
            token=spelling.token_text(token.token_id),
            token_id=token.token_id,
            logprob=token.logprob,
            top=[
                TokenAnswer(token=spelling.token_text(other), token_id=other, logprob=logprob)
                for other, logprob in token.top_and_own
            ],
        )
        for token in logprobs
    ]


def _to_score(score: ContinuationScore) -> ScoreAnswer:
    return ScoreAnswer(logprob=score.logprob, token_logprobs=list(score.logprobs), is_greedy=score.is_greedy)
