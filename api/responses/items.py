"""Defines the items of a response's input, and makes the messages of a chat out of them."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from api.inputs.foreign import Ignored
from api.inputs.schema import NonEmptyText, Schema, Text, one_of, text_or_list

UNREADABLE_PARTS = {
    "input_image": "images are not supported; send text only",
    "input_file": "files are not supported; send their text",
    "input_audio": "audio is not supported; send text only",
    "refusal": "refusals are not supported; leave the part out",
}
KINDS = ("message", "function_call", "function_call_output", "reasoning")
WANTED = "must be an item of the type message, function_call, function_call_output or reasoning"


def _readable(kind: object) -> object:
    if isinstance(kind, str) and kind in UNREADABLE_PARTS:
        raise ValueError(UNREADABLE_PARTS[kind])
    return kind


class ResponsePart(Schema):
    """A piece of an item's text."""

    type: Annotated[Literal["input_text", "output_text", "text"], BeforeValidator(_readable)]
    text: Text
    annotations: Ignored = None
    logprobs: Ignored = None
    prompt_cache_breakpoint: Ignored = None


ItemText = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[ResponsePart], Field(min_length=1), Tag("list")],
    one_of("a string or a list of text parts", text_or_list),
]


class _Item(Schema):
    id: NonEmptyText | None = None
    status: Ignored = None


class MessageItem(_Item):
    """A turn of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemText
    phase: Ignored = None


class FunctionCallItem(_Item):
    """The model's call of a function."""

    type: Literal["function_call"]
    call_id: NonEmptyText
    name: NonEmptyText
    arguments: Text
    namespace: Ignored = None
    caller: Ignored = None
    parsed_arguments: Ignored = None


class FunctionOutputItem(_Item):
    """What a function that the model called has returned."""

    type: Literal["function_call_output"]
    call_id: NonEmptyText
    output: ItemText
    name: Ignored = None
    namespace: Ignored = None
    caller: Ignored = None


class ReasoningText(Schema):
    """A piece of the model's reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(_Item):
    """The model's earlier reasoning."""

    type: Literal["reasoning"]
    summary: list[ReasoningText] = Field(default_factory=list)
    content: list[ReasoningText] | None = None
    encrypted_content: Ignored = None


InputItem = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem


def _supported(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in KINDS:
        if kind == "item_reference":
            raise ValueError("references to items are not supported; send the item, or previous_response_id")
        raise ValueError(f"items of the type {kind[:40]!r} are not supported; leave it out. An item {WANTED}")
    return value


def _kind_of(value: object) -> str | None:
    if isinstance(value, dict):
        return str(value.get("type") or "message")
    return str(getattr(value, "type", "")) or None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    one_of(WANTED.removeprefix("must be "), _kind_of),
    BeforeValidator(_supported),
]
Input = Annotated[
    Annotated[NonEmptyText, Tag("text")] | Annotated[list[Item], Field(min_length=1), Tag("list")],
    one_of("a string or a list of items", text_or_list),
]


def stored_items(given: str | Sequence[InputItem], name: str) -> list[dict[str, Any]]:
    """Return the items of an input as they are stored and listed; `name` is unique to the response."""
    if isinstance(given, str):
        given = [MessageItem(role="user", content=given)]
    return [_stored(item, f"{name}_in{index}") for index, item in enumerate(given)]


def _stored(item: InputItem, name: str) -> dict[str, Any]:
    if isinstance(item, MessageItem):
        part: dict[str, Any] = {"type": "input_text"}
        if item.role == "assistant":
            part = {"type": "output_text", "annotations": []}
        return {
            "id": item.id or f"msg_{name}",
            "type": "message",
            "role": item.role,
            "status": "completed",
            "content": [part | {"text": text} for text in _texts(item.content)],
        }
    if isinstance(item, FunctionCallItem):
        return {
            "id": item.id or f"fc_{name}",
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": item.arguments,
            "status": "completed",
        }
    if isinstance(item, FunctionOutputItem):
        return {
            "id": item.id or f"fco_{name}",
            "type": "function_call_output",
            "call_id": item.call_id,
            "output": "\n".join(_texts(item.output)),
            "status": "completed",
        }
    return {
        "id": item.id or f"rs_{name}",
        "type": "reasoning",
        "summary": [part.model_dump() for part in item.summary],
        "content": [part.model_dump() for part in item.content or ()],
    }


def _texts(content: str | Sequence[ResponsePart]) -> list[str]:
    return [content] if isinstance(content, str) else [part.text for part in content]


def to_messages(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return stored items as the messages of a chat.

    Reasoning belongs to the assistant's message after it, calls of functions to the one before them.
    """
    messages: list[dict[str, Any]] = []
    thought: dict[str, str] = {}
    for item in items:
        match item["type"]:
            case "reasoning":
                text = "\n".join(part["text"] for part in item["content"] or item["summary"])
                thought = {"reasoning_content": text} if text else {}
            case "message":
                content = "\n".join(part["text"] for part in item["content"])
                message = {"role": item["role"], "content": content}
                if item["role"] == "assistant":
                    message |= thought
                    thought = {}
                messages.append(message)
            case "function_call":
                if thought or not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None, **thought})
                    thought = {}
                call = {"name": item["name"], "arguments": item["arguments"]}
                messages[-1].setdefault("tool_calls", []).append(
                    {"id": item["call_id"], "type": "function", "function": call}
                )
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return messages
