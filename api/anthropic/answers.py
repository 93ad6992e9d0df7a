"""Turns a Result into the message, or the line of a batch's results, that Anthropic's clients read."""

from typing import Any

from api.anthropic.blocks import to_blocks
from api.anthropic_errors import anthropic_error
from api.batches.tool_turns import tool_turns_of
from api.generate.outputs import choices_of, failure
from api.inputs.checkpoint import Checkpoint
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice


def message_id(batch_id: str, position: int) -> str:
    """Return the id of a message."""
    return f"msg_{batch_id.removeprefix('batch_')}-{position}"


def to_message(checkpoint: Checkpoint, result: ResultView, *, batch_id: str) -> dict[str, Any]:
    """Return the message of a completed result. Its id is the same every time."""
    (choice,) = choices_of(result)
    own_id = message_id(batch_id, result.position)
    blocks = to_blocks(choice.text, result.parsing, seed=own_id)
    return {
        "id": own_id,
        "type": "message",
        "role": "assistant",
        "model": checkpoint.name if result.model is None else result.model.name,
        "content": blocks,
        **to_end(checkpoint, choice, result, has_calls=any(block["type"] == "tool_use" for block in blocks)),
        "usage": to_usage(result),
        **tool_turns_of(result),
    }


def to_end(checkpoint: Checkpoint, choice: Choice, result: ResultView, *, has_calls: bool) -> dict[str, Any]:
    """Return why a message ended."""
    reason = "tool_use" if has_calls else "end_turn"
    if choice.finish_reason is FinishReason.LENGTH:
        num_tokens = result.num_prompt_tokens + result.num_output_tokens
        made_by = None if result.model is None else result.model.fingerprint
        served = checkpoint.of(made_by) or checkpoint
        is_full = num_tokens >= served.max_model_len
        reason = "model_context_window_exceeded" if is_full else "max_tokens"
    elif choice.stop is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": choice.stop}


def to_usage(result: ResultView) -> dict[str, Any]:
    """Return the tokens of a message."""
    return usage_of(result.num_prompt_tokens, result.num_cached_tokens, result.num_output_tokens)


def usage_of(num_prompt_tokens: int, num_cached_tokens: int, num_output_tokens: int) -> dict[str, Any]:
    """Return the tokens of a message, whose prompt tokens are split by whether a cache had them."""
    return {
        "input_tokens": num_prompt_tokens - num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached_tokens,
        "output_tokens": num_output_tokens,
    }


def to_result_line(checkpoint: Checkpoint, result: ResultView, *, batch_id: str) -> dict[str, Any]:
    """Return a result as a line of a batch's results."""
    return {"custom_id": result.custom_id, "result": _outcome(checkpoint, result, batch_id)}


def _outcome(checkpoint: Checkpoint, result: ResultView, batch_id: str) -> dict[str, Any]:
    if result.outcome is Outcome.CANCELLED:
        kind = "expired" if result.error_code == "batch_expired" else "canceled"
        return {"type": kind, **tool_turns_of(result)}
    failed = failure(result)
    if failed is None:
        return {"type": "succeeded", "message": to_message(checkpoint, result, batch_id=batch_id)}
    error = anthropic_error(
        int(failed.status), failed.message, param=failed.param, code=failed.code, request_id=None
    )
    return {"type": "errored", "error": error, **tool_turns_of(result)}
