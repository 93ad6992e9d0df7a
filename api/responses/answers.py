"""Writes a response as OpenAI's clients read it, from what was asked for, its batch and its Result."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.batches.tool_turns import tool_turns_of
from api.generate.outputs import choices_of, num_reasoning_tokens
from api.inputs.checkpoint import Checkpoint
from api.openai.logprobs import to_token_logprobs
from api.responses.output import OutputWriter
from worker.contract.states import BatchStatus
from worker.store.batches.batch_views import BatchView
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice

# The fields that a response repeats, and what they are where the request does not say.
DEFAULTS: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
# Codes of errors that are the request's own fault; to OpenAI's clients all others are the server's.
ITS_OWN_FAULT = {"generation_failed", "context_length_exceeded"}
STATUSES = {BatchStatus.PENDING: "queued", BatchStatus.CANCELLED: "cancelled"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a response is for: its name, the fields to repeat, when it was accepted."""

    name: str  # of its batch, and of its line in it
    request: Mapping[str, Any]
    created_at: datetime

    @property
    def id(self) -> str:
        """The response's id."""
        return f"resp_{self.name}"


def name_of(batch_id: str, position: int | None = None) -> str:
    """Return the name of the response that a batch is, or that a line of a batch of many is."""
    name = batch_id.removeprefix("batch_")
    return name if position is None else f"{name}-{position}"


def batch_of(response_id: str) -> str:
    """Return the id of the batch that a stored response is."""
    return f"batch_{response_id.removeprefix('resp_')}"


def to_response(checkpoint: Checkpoint, result: ResultView, *, batch_id: str) -> dict[str, Any]:
    """Return the response of one line of a batch. The fields that its line set are not repeated."""
    asked = Asked(name_of(batch_id, result.position), {"store": False}, result.accepted_at)
    return ended(checkpoint, asked, result) | tool_turns_of(result)


def ended(checkpoint: Checkpoint, asked: Asked, result: ResultView) -> dict[str, Any]:
    """Return a response whose Result is there."""
    status = status_of(result)
    return unfinished(checkpoint, asked, status) | {
        "completed_at": int(result.created_at.timestamp()) if status == "completed" else None,
        "model": checkpoint.name if result.model is None else result.model.name,
        "error": error_of(result),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output_of(checkpoint, asked.name, result),
        "usage": usage_of(result),
    }


def unfinished(checkpoint: Checkpoint, asked: Asked, status: str) -> dict[str, Any]:
    """Return a response without a Result."""
    request = asked.request
    text, reasoning = request.get("text") or {}, request.get("reasoning") or {}
    return {
        "id": asked.id,
        "object": "response",
        "created_at": int(asked.created_at.timestamp()),
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": request.get("model", checkpoint.name),
        "output": [],
        "usage": None,
        **{name: request.get(name, default) for name, default in DEFAULTS.items()},
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "flex" if request.get("service_tier") == "flex" else "default",
        "text": {"format": {"type": "text"}, **text},
    }


def status_of(result: ResultView) -> str:
    """Return the status of a response that has ended."""
    if result.outcome is not Outcome.COMPLETED:
        return "cancelled" if result.outcome is Outcome.CANCELLED else "failed"
    return "incomplete" if _first(result).finish_reason is FinishReason.LENGTH else "completed"


def status_of_batch(view: BatchView) -> str:
    """Return the status of a response whose batch has no Result."""
    if view.status.is_terminal:
        return STATUSES.get(view.status, "failed")
    return STATUSES.get(view.status, "in_progress")


def error_of(result: ResultView) -> dict[str, str] | None:
    """Return the error of a response that failed."""
    if result.outcome is not Outcome.FAILED:
        return None
    code = "invalid_prompt" if result.error_code in ITS_OWN_FAULT else "server_error"
    return {"code": code, "message": f"{result.error_message} ({result.error_code})"}


def output_of(checkpoint: Checkpoint, name: str, result: ResultView) -> list[dict[str, Any]]:
    """Return the items of an output; a request that did not come to its end keeps what it had."""
    if result.output is None:
        return []
    choice, status = _first(result), status_of(result)
    writer = OutputWriter(name, result.parsing)
    spelling = checkpoint.spelling_of(None if result.model is None else result.model.fingerprint)
    writer.feed(choice.text, to_token_logprobs(spelling, choice.logprobs or ()))
    writer.end("completed" if status == "completed" else "incomplete")
    return writer.items


def usage_of(result: ResultView) -> dict[str, Any]:
    """Return the tokens of a response. Nothing is charged for what the prefix cache keeps."""
    return {
        "input_tokens": result.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": result.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": result.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens(result)},
        "total_tokens": result.num_prompt_tokens + result.num_output_tokens,
    }


def _first(result: ResultView) -> Choice:
    return choices_of(result)[0]
