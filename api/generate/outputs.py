"""Reads the outputs, or the error, of a generation off its Result."""

from api.errors import ApiError, RequestFailedError
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice, Payload


def choices_of(result: ResultView) -> tuple[Choice, ...]:
    """Return every choice of a completed generation."""
    payload = result.payload or Payload()
    reason = FinishReason(result.finish_reason or FinishReason.STOP)
    return payload.choices or (Choice(result.output or "", reason, stop=payload.stop),)


def num_reasoning_tokens(result: ResultView) -> int:
    """Return how many tokens of a generation's choices are reasoning."""
    return (result.payload or Payload()).num_reasoning_tokens


def failure(result: ResultView) -> ApiError | None:
    """Return the error of a request without a complete output; None if it has one."""
    if result.outcome is Outcome.COMPLETED:
        return None
    message = result.error_message or "The request failed."
    return RequestFailedError(message, code=result.error_code, is_its_fault=result.is_wrong_line)
