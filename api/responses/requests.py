"""Turns a response's body into the request of a chat, which is stored and run as any other."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from api.errors import InvalidInputError, invalid_input
from api.inputs.checkpoint import Checkpoint
from api.inputs.prompts import fit
from api.inputs.sampling import refusal
from api.inputs.tools import FunctionDefinition
from api.openai import requests as chats
from api.openai.bodies import Endpoint, read_body
from api.responses.bodies import SAMPLING, ChosenFunction, JsonSchemaText, ResponseBody
from api.responses.items import stored_items, to_messages
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams

# What a chat calls a field, and what a response calls it.
NAMES = {
    r"messages\b[\w.\[\]]*": "input",
    r"(max_completion_tokens|max_tokens)": "max_output_tokens",
    r"response_format\.json_schema\.schema": "text.format.schema",
    r"response_format": "text.format",
    r"reasoning_effort": "reasoning.effort",
    r"verbosity": "text.verbosity",
    r"truncate_prompt_tokens: -1 to lose the beginning of it": "truncation: auto to lose its oldest turns",
    r"(tools\[\d+\]|tool_choice)\.function": r"\1",
}
IN_A_LINE = {
    "stream": "must not be true: a batch cannot be streamed",
    "background": "must not be true: a batch is in the background already",
    "previous_response_id": "is not supported in a batch: send the whole conversation as input",
}


def from_line(checkpoint: Checkpoint, body: Any, *, custom_id: str | None, path: str = "body") -> NewRequest:
    """Return the request of one line of a batch; `api.inputs.prompts.fit` counts its tokens.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.
        ModelNotFoundError: another model is served.

    """
    try:
        read = ResponseBody.model_validate(body)
    except ValidationError as error:
        raise invalid_input(error.errors(include_url=False)[0], body, path) from error
    for name, problem in IN_A_LINE.items():
        if getattr(read, name):
            raise refusal(path, name, problem)
    return to_request(checkpoint, read, stored_items(read.input, "line"), custom_id=custom_id, path=path)


def to_request(
    checkpoint: Checkpoint,
    body: ResponseBody,
    items: Sequence[dict[str, Any]],
    *,
    custom_id: str | None = None,
    path: str = "",
) -> NewRequest:
    """Return the request of a response whose conversation consists of stored items.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.
        ModelNotFoundError: another model is served.

    """
    chat = _to_chat(body)

    def from_turn(start: int) -> NewRequest:
        """Return the request without the turns before the item `start`."""
        kept = [item for i, item in enumerate(items) if i >= start or _is_rule(item)]
        instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
        messages = {"messages": instructions + to_messages(kept)}
        read = read_body(Endpoint.CHAT_COMPLETIONS, chat | messages, path)
        return chats.to_request(checkpoint, read, custom_id=custom_id, path=path)

    try:
        if body.truncation != "auto":
            return from_turn(0)
        starts = [0, *(i for i, item in enumerate(items) if item.get("role") == "user")]
        first = bisect_left(starts[:-1], True, key=lambda start: _fits(checkpoint, from_turn(start)))
        return from_turn(starts[first])
    except InvalidInputError as error:
        raise renamed(error) from error


def fitted(checkpoint: Checkpoint, request: NewRequest, *, max_prompt_bytes: int) -> NewRequest:
    """Return a request with its tokens counted; raises InvalidInputError if it does not fit the model."""
    try:
        (found,) = fit(
            checkpoint,
            [request],
            default=SamplingParams(),
            max_prompt_bytes=max_prompt_bytes,
            name=lambda _: "input",
        )
    except InvalidInputError as error:
        raise renamed(error) from error
    return found


def renamed(error: InvalidInputError) -> InvalidInputError:
    """Return an error of a chat in the names of a response's fields."""
    message, param = error.message, error.param or ""
    for theirs, ours in NAMES.items():
        param = re.sub(rf"(^|(?<=\.)){theirs}", ours, param)
        message = re.sub(rf"\b{theirs}", ours, message)
    return InvalidInputError(message, param=param or None, code=error.code)


def _to_chat(body: ResponseBody) -> dict[str, Any]:
    """Return the body of a chat, without messages."""
    chat: dict[str, Any] = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    chat |= {
        "model": body.model,
        "stream": body.stream,
        "priority": body.priority,
        "timeout_seconds": body.timeout_seconds,
    }
    if body.max_output_tokens is not None:
        chat["max_completion_tokens"] = body.max_output_tokens
    if body.num_logprobs is not None:
        chat |= {"logprobs": True, "top_logprobs": body.num_logprobs}
    if body.reasoning is not None and body.reasoning.effort is not None:
        chat["reasoning_effort"] = body.reasoning.effort
    return chat | _tools(body) | _form(body)


def _tools(body: ResponseBody) -> dict[str, Any]:
    """Return the fields of a chat that offer tools."""
    found: dict[str, Any] = {}
    if body.tools:
        functions = [tool.model_dump(include=set(FunctionDefinition.model_fields)) for tool in body.tools]
        found["tools"] = [{"type": "function", "function": function} for function in functions]
    if body.parallel_tool_calls is not None:
        found["parallel_tool_calls"] = body.parallel_tool_calls
    if isinstance(body.tool_choice, ChosenFunction):
        found["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    elif body.tool_choice is not None:
        found["tool_choice"] = body.tool_choice
    if body.tool_endpoint is not None:
        found["tool_endpoint"] = body.tool_endpoint.model_dump(exclude_unset=True)
    return found


def _form(body: ResponseBody) -> dict[str, Any]:
    """Return the fields of a chat that say what form its text has."""
    found: dict[str, Any] = {}
    if body.text is None:
        return found
    if body.text.verbosity is not None:
        found["verbosity"] = body.text.verbosity
    if (form := body.text.format) is not None:
        written = form.model_dump(by_alias=True, exclude_none=True)
        if isinstance(form, JsonSchemaText):
            written = {"type": written.pop("type"), "json_schema": written}
        found["response_format"] = written
    return found


def _is_rule(item: dict[str, Any]) -> bool:
    return item["type"] == "message" and item["role"] in {"system", "developer"}


def _fits(checkpoint: Checkpoint, request: NewRequest) -> bool:
    params = request.params
    asked = request.max_tokens if isinstance(params, SamplingParams) and params.must_fit else 1
    checkpoint = checkpoint.serving(request.model)
    (count,) = checkpoint.count_tokens([request.prompt], add_special_tokens=request.add_special_tokens)
    return count + asked <= checkpoint.max_model_len
