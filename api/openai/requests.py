"""Turns a body into a request to store, and makes the checks that its schema cannot."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from api.inputs.chat import ToolUse, to_chat, to_turns
from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.inputs.sampling import refusal, to_params
from api.inputs.tool_loops import to_loop
from api.inputs.tools import FunctionChoice, NamedToolChoice, ToolCall, ToolChoice
from api.openai.bodies import (
    Body,
    ChatBody,
    ChatMessage,
    CompletionBody,
    EmbeddingBody,
    Endpoint,
    read_body,
)
from worker.store.requests.requests import NewRequest
from worker.values.requests import EmbeddingParams, Pooling, Prompt
from worker.values.sampling import SamplingParams

NO_LIMIT = 2**31 - 1  # only the context limits it
NEEDED = {"tool": "tool_call_id", "function": "name"}  # which call, or function, a result is of
CHAT_DEFAULTS = SamplingParams(max_tokens=NO_LIMIT, temperature=1.0)
COMPLETION_DEFAULTS = SamplingParams(max_tokens=16, temperature=1.0)


def from_line(
    checkpoint: Checkpoint, endpoint: Endpoint, body: Any, *, custom_id: str | None, path: str = "body"
) -> NewRequest:
    """Return the request of one line of a batch; `api.inputs.prompts.fit` counts its tokens.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.
        ModelNotFoundError: another model is served.

    """
    return to_request(checkpoint, read_line_body(endpoint, body, path), custom_id=custom_id, path=path)


def read_line_body(endpoint: Endpoint, body: Any, path: str) -> Body:
    """Check the body of a line by its schema; raises InvalidInputError as `from_line`."""
    read = read_body(endpoint, body, path)
    if not isinstance(read, EmbeddingBody) and read.stream:
        raise refusal(path, "stream", "must not be true: a batch cannot be streamed")
    return read


def to_request(
    checkpoint: Checkpoint, body: Body, *, custom_id: str | None = None, path: str = ""
) -> NewRequest:
    """Return the request of a body; `api.inputs.prompts.fit` counts its tokens.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.
        ModelNotFoundError: another model is served.

    """
    found = find_checkpoint(checkpoint, body.model, path)
    if isinstance(body, ChatBody):
        return open_chat(found, body, path).to_request(custom_id, path)
    if isinstance(body, CompletionBody):
        return _completion(found, body, custom_id, path)
    return _embedding(found, body, custom_id, path)


def prompts_field(body: Body) -> str:
    """Return the name of the field that holds a body's prompts."""
    if isinstance(body, ChatBody):
        return "messages"
    return "prompt" if isinstance(body, CompletionBody) else "input"


@dataclass(frozen=True, slots=True)
class OpenedChat:
    """A chat of which everything is checked but what its template makes of the texts."""

    checkpoint: Checkpoint
    body: ChatBody
    params: SamplingParams
    use: ToolUse
    turns: list[dict[str, Any]]

    def with_texts(self, texts: Iterable[str]) -> "OpenedChat":
        """Return the same chat with these contents of its messages, which must be storable."""
        turns = [{**turn, "content": text} for turn, text in zip(self.turns, texts, strict=True)]
        return replace(self, turns=turns)

    def to_request(self, custom_id: str | None, path: str) -> NewRequest:
        """Return the request, as `to_request` of this module does."""
        body, loop = self.body, None
        if body.tool_endpoint is None:
            prompt, params = to_chat(self.checkpoint, self.turns, self.use, self.params, path, body)
        else:
            prompt, params, loop = to_loop(
                self.checkpoint, self.turns, self.use, self.params, path, body, body.tool_endpoint
            )
        return NewRequest(
            prompt=prompt,
            max_tokens=params.max_tokens,
            custom_id=custom_id,
            priority=body.priority,
            timeout_seconds=body.timeout_seconds,
            model=self.checkpoint.model,
            params=params,
            add_special_tokens=bool(body.add_special_tokens),
            is_streamed=bool(body.stream),
            tool_loop=loop,
        )


def open_chat(checkpoint: Checkpoint, body: ChatBody, path: str) -> OpenedChat:
    """Make the checks of a chat that its schema cannot; raises as `to_request`."""
    if body.top_logprobs and not body.logprobs:
        raise refusal(path, "top_logprobs", "requires logprobs to be true")
    if body.max_completion_tokens is not None:
        body = body.model_copy(update={"max_tokens": body.max_completion_tokens})
    _check_stream(body, path)
    params = to_params(body, CHAT_DEFAULTS, checkpoint, path)
    use = _tool_use(body, path)
    return OpenedChat(checkpoint, body, params, use, to_turns(_newer(body.messages, path), path))


def _tool_use(body: ChatBody, path: str) -> ToolUse:
    """Return the tools of a body, which may ask for them in the older form."""
    if not (body.functions or body.function_call):
        return ToolUse.of(body, path)
    if body.tools or body.tool_choice:
        field = "functions" if body.functions else "function_call"
        raise refusal(path, field, "cannot be combined with tools and tool_choice, its newer form")
    asked = body.function_call or "auto"
    choice: ToolChoice = (
        NamedToolChoice(type="function", function=asked) if isinstance(asked, FunctionChoice) else asked
    )
    use = ToolUse(body.functions or (), choice, is_parallel=False, is_older=True, field="functions")
    use.check(path, "function_call")
    return use


def _newer(messages: Sequence[ChatMessage], path: str) -> list[ChatMessage]:
    """Return a conversation with the newer form of calls, and of their results."""
    found: list[ChatMessage] = []
    last_id = ""  # of the last call in the older form, in which calls have none
    for i, message in enumerate(messages):
        for role, name in NEEDED.items():
            if message.role == role and not getattr(message, name):
                raise refusal(path, f"messages[{i}].{name}", f"is required of role {role}")
        changes: dict[str, Any] = {}
        if message.function_call is not None:
            last_id = f"call_{i}"
            calls = [*(message.tool_calls or ()), ToolCall(id=last_id, function=message.function_call)]
            changes = {"function_call": None, "tool_calls": calls}
        elif message.role == "function":
            changes = {"role": "tool", "tool_call_id": last_id}
        elif message.role == "developer":
            changes = {"role": "system"}
        found.append(message.model_copy(update=changes) if changes else message)
    return found


def _completion(checkpoint: Checkpoint, body: CompletionBody, custom_id: str | None, path: str) -> NewRequest:
    _check_stream(body, path)
    params = to_params(body, COMPLETION_DEFAULTS, checkpoint, path)
    prompt, inputs = _to_inputs(body.prompt)
    return NewRequest(
        prompt=prompt,
        inputs=inputs,
        max_tokens=params.max_tokens,
        custom_id=custom_id,
        priority=body.priority,
        timeout_seconds=body.timeout_seconds,
        model=checkpoint.model,
        params=params,
        add_special_tokens=body.add_special_tokens is not False,
        is_streamed=bool(body.stream),
    )


def _check_stream(body: ChatBody | CompletionBody, path: str) -> None:
    if body.stream_options is not None and not body.stream:
        raise refusal(path, "stream_options", "requires stream to be true")
    if body.stream and body.prompt_logprobs is not None:
        raise refusal(path, "prompt_logprobs", "cannot be streamed; leave out stream")
    if body.stream and body.best_of is not None and body.best_of > (body.n or 1):
        raise refusal(
            path, "best_of", "must be at most n in a stream, as the best outputs are known only at the end"
        )


def _embedding(checkpoint: Checkpoint, body: EmbeddingBody, custom_id: str | None, path: str) -> NewRequest:
    if body.dimensions is not None and checkpoint.hidden_size and body.dimensions > checkpoint.hidden_size:
        raise refusal(
            path, "dimensions", f"must be at most {checkpoint.hidden_size}, the length of the model's vectors"
        )
    prompt, inputs = _to_inputs(body.input)
    return NewRequest(
        prompt=prompt,
        inputs=inputs,
        max_tokens=1,
        custom_id=custom_id,
        priority=body.priority,
        timeout_seconds=body.timeout_seconds,
        model=checkpoint.model,
        params=EmbeddingParams(Pooling(body.pooling), body.normalize, body.dimensions, body.encoding_format),
    )


def _to_inputs(
    given: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
) -> tuple[str, tuple[Prompt, ...] | None]:
    """Return a single text and None, or an empty text and the inputs."""
    if isinstance(given, str):
        return given, None
    if isinstance(given[0], int):
        return "", (tuple(given),)  # type: ignore[arg-type]
    return "", tuple(one if isinstance(one, str) else tuple(one) for one in given)  # type: ignore[arg-type]
