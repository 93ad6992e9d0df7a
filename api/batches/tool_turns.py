"""Writes what a tool loop has done before its last output."""

from typing import Any

from api.batches.result_schemas import MadeCallAnswer, ToolTurnAnswer
from worker.parsing.parser import parse
from worker.store.requests.result_views import ResultView
from worker.values.results import Payload


def to_tool_turns(result: ResultView) -> list[ToolTurnAnswer] | None:
    """Return the recorded turns of a result; None if it has none."""
    turns = (result.payload or Payload()).tool_turns
    return [
        ToolTurnAnswer(
            turn=turn.number,
            content=parse(turn.output, result.parsing, seed="").content or None,
            calls=[MadeCallAnswer.model_validate(call) for call in turn.calls],
            input_tokens=turn.num_prompt_tokens,
            cached_tokens=turn.num_cached_tokens,
            output_tokens=turn.num_output_tokens,
        )
        for turn in turns
    ] or None


def tool_turns_of(result: ResultView) -> dict[str, Any]:
    """Return the field with what a tool loop has done before its last output, if it has done anything."""
    turns = to_tool_turns(result)
    return {} if turns is None else {"tool_turns": [turn.model_dump() for turn in turns]}
