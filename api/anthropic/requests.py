"""Turns Anthropic's bodies into the chat requests that all routes share."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from api.anthropic.bodies import (
    CountedMessage,
    MessageText,
    MessageTool,
    MessageToolChoice,
    MessageTurn,
    NewMessage,
    PastThinking,
    PastToolResult,
    PastToolUse,
    joined,
)
from api.errors import InvalidInputError, ModelNotFoundError
from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import to_request
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams

Kind = TypeVar("Kind")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# Our name of a field of a chat, by what the chat calls it; the longest that fits counts.
NAMES = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


def to_message_request(
    checkpoint: Checkpoint, body: NewMessage, *, custom_id: str | None = None, path: str = ""
) -> NewRequest:
    """Return the request of a body; `api.inputs.prompts.fit` counts its tokens.

    Its `max_tokens` is a limit and no demand: it need not fit the context.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.
        ModelNotFoundError: another model is served.

    """
    sampling: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stream": body.stream,
    }
    if body.tool_endpoint is not None:
        sampling["tool_endpoint"] = body.tool_endpoint.model_dump(exclude_unset=True)
    request = _to_chat_request(checkpoint, body, sampling, path)
    params, loop = request.params, request.tool_loop
    if isinstance(params, SamplingParams):
        params = replace(params, must_fit=False)
    if loop is not None and loop.forced is not None:
        loop = replace(loop, forced=replace(loop.forced, must_fit=False))
    return replace(request, custom_id=custom_id, params=params, tool_loop=loop)


def to_counted(checkpoint: Checkpoint, body: CountedMessage) -> NewRequest:
    """Return a request with the prompt of a body; raises as `to_message_request` does."""
    return _to_chat_request(checkpoint, body, {}, "")


def _to_chat_request(
    checkpoint: Checkpoint, body: CountedMessage, sampling: dict[str, Any], path: str
) -> NewRequest:
    find_checkpoint(checkpoint, body.model, path)
    turns = list(_turns(body))
    chat = {"model": body.model, "messages": turns, **sampling, **_options(body)}
    if turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]:
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    given = {name: value for name, value in chat.items() if value is not None}
    try:
        return to_request(checkpoint, read_body(Endpoint.CHAT_COMPLETIONS, given))
    except ModelNotFoundError:
        raise
    except InvalidInputError as error:
        raise _renamed(error, path) from error


def _options(body: CountedMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.tools:
        found["tools"] = [_to_tool(tool) for tool in body.tools]
    if body.tool_choice is not None:
        found["tool_choice"] = _to_choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use is not None:
            found["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    if (thinking := body.thinking) is not None:
        found["enable_thinking"] = {"enabled": True, "disabled": False}.get(thinking.type)
        found["thinking_budget"] = thinking.budget_tokens
    if body.output_config is not None:
        found["reasoning_effort"] = body.output_config.effort
    if body.output_config is not None and body.output_config.format is not None:
        schema = body.output_config.format.json_schema
        found["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    return found


def _to_tool(tool: MessageTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    given = {"description": tool.description, "strict": tool.strict}
    return {
        "type": "function",
        "function": function | {name: value for name, value in given.items() if value is not None},
    }


def _to_choice(choice: MessageToolChoice) -> str | dict[str, Any]:
    if choice.type != "tool":
        return CHOICES[choice.type]
    if choice.name is None:
        raise InvalidInputError(
            "tool_choice.name: is required", param="tool_choice.name", code="missing_field"
        )
    return {"type": "function", "function": {"name": choice.name}}


def _turns(body: CountedMessage) -> Iterator[dict[str, Any]]:
    """Yield the turns of a chat; neighbours of one role become one turn."""
    if body.system:
        yield {"role": "system", "content": joined(body.system)}
    last: dict[str, Any] | None = None
    for message in body.messages:
        for turn in _parts(message):
            if last is not None and turn["role"] == last["role"] != "tool":
                texts = [text for one in (last, turn) if (text := one["content"])]
                last["content"] = "\n".join(texts)
                if calls := [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]:
                    last["tool_calls"] = calls
                continue
            if last is not None:
                yield last
            last = turn
    if last is not None:
        yield last


def _parts(message: MessageTurn) -> Iterator[dict[str, Any]]:
    """Yield the turns of one message: the answers of tools, then its text with its calls."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    blocks = message.content
    for block in blocks:
        if isinstance(block, PastToolResult):
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": joined(block.content)}
    turn: dict[str, Any] = {"role": message.role, "content": joined(_of_kind(blocks, MessageText))}
    if thoughts := _of_kind(blocks, PastThinking):
        turn["reasoning_content"] = "\n".join(one.thinking for one in thoughts)
    if calls := _of_kind(blocks, PastToolUse):
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.input, ensure_ascii=False)},
            }
            for call in calls
        ]
    if turn["content"] or calls or not _of_kind(blocks, PastToolResult):
        yield turn


def _of_kind(blocks: Sequence[object], kind: type[Kind]) -> list[Kind]:
    return [block for block in blocks if isinstance(block, kind)]


def _renamed(error: InvalidInputError, path: str) -> InvalidInputError:
    """Return the error of a chat's field under the name that Anthropic's clients know."""
    given = error.param or ""
    name = given
    for ours, theirs in sorted(NAMES.items(), key=lambda pair: -len(pair[0])):
        if given == ours or given.startswith((f"{ours}.", f"{ours}[")):
            name = theirs + given[len(ours) :]
            break
    name = name.replace(".function.parameters", ".input_schema").replace(".function.", ".")
    param = ".".join(part for part in (path, name) if part)
    message = error.message.removeprefix(f"{given}: ")
    return InvalidInputError(f"{param}: {message}", param=param, code=error.code)
