"""Functions that a response may call: asked for as a chat's, told as items and events."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.errors import InvalidInputError
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import to_request as to_chat_request
from api.responses.answers import Asked, ended
from api.responses.bodies import ResponseBody
from api.responses.items import stored_items, to_messages
from api.responses.output import OutputWriter
from api.responses.requests import from_line, to_request
from tests.api.openai.test_answers import RESULT
from tests.api.openai.test_tools import HERMES, WEATHER, call
from tests.fixtures.checkpoint import write_checkpoint
from worker.store.requests.requests import NewRequest
from worker.values.parsing import Family, Parsing

FLAT = {"type": "function", **WEATHER["function"]}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALLED = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "x"}'}
TOLD = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path, chat_template=HERMES))


def asked(checkpoint: Checkpoint, **fields: Any) -> NewRequest:
    body = ResponseBody.model_validate({"model": checkpoint.name, "input": "hello"} | fields)
    return to_request(checkpoint, body, stored_items(body.input, "x"))


def chat(checkpoint: Checkpoint, **fields: Any) -> NewRequest:
    body = {"model": checkpoint.name, "messages": [{"role": "user", "content": "hello"}]} | fields
    return to_chat_request(checkpoint, read_body(Endpoint.CHAT_COMPLETIONS, body))


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        (None, None),
        ("required", "required"),
        ("none", "none"),
        (
            {"type": "function", "name": "get_weather"},
            {"type": "function", "function": {"name": "get_weather"}},
        ),
    ],
)
def test_a_response_offers_functions_as_a_chat_does(checkpoint: Checkpoint, choice: Any, same: Any) -> None:
    found = asked(checkpoint, tools=[FLAT], tool_choice=choice, parallel_tool_calls=False)
    assert found == chat(checkpoint, tools=[WEATHER], tool_choice=same, parallel_tool_calls=False)
    assert ("get_weather" in found.prompt) == (choice != "none")


def test_calls_and_their_outputs_come_back_as_a_chats_do(checkpoint: Checkpoint) -> None:
    items = [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": "Hm."}]
    given = [*items, {"type": "reasoning", "id": "rs_1", "summary": []}, CALLED, TOLD]
    messages = [
        items[0],
        {
            "role": "assistant",
            "content": "Hm.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "x"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert to_messages(stored_items(ResponseBody(model="m", input=given).input, "x")) == messages
    assert asked(checkpoint, input=given, tools=[FLAT]) == chat(
        checkpoint, messages=messages, tools=[WEATHER]
    )
    bare = asked(checkpoint, input=[items[0], CALLED, TOLD], tools=[FLAT])
    assert "<tool_call>" in bare.prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "body.tools[0]"),
        ({"tool_choice": "required"}, "body.tool_choice"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "other"}}, "body.tool_choice"),
        ({"tools": [FLAT, FLAT]}, "body.tools[1]"),
        ({"input": [{**CALLED, "name": ""}]}, "body.input[0].name"),
    ],
)
def test_what_a_function_may_not_be_is_refused(
    checkpoint: Checkpoint, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        from_line(checkpoint, {"model": checkpoint.name, "input": "x"} | fields, custom_id=None)
    assert refused.value.param == param


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_items_and_events_however_their_text_comes(checkpoint: Checkpoint, size: int) -> None:
    first, second = '{"city": "Paris"}', '{"city": "Rome", "days": 2}'
    text = f"Let me see. {call('get_weather', first)}\n{call('get_weather', second)}"
    parsing = Parsing(Family.HERMES, ("get_weather",))
    result = replace(RESULT, output=text, finish_reason="stop", payload=None, parsing=parsing)
    request = {"tools": [FLAT | {"strict": True}], "tool_choice": "auto"}
    whole = ended(checkpoint, Asked("ab", request, datetime.now(UTC)), result)
    said = Response.model_validate(whole)
    assert [item.type for item in said.output] == ["message", "function_call", "function_call"]
    assert (said.status, said.output_text) == ("completed", "Let me see.")
    calls = [item for item in said.output if item.type == "function_call"]
    assert [(item.name, item.arguments) for item in calls] == [
        ("get_weather", first),
        ("get_weather", second),
    ]
    assert len({item.call_id for item in calls}) == 2
    writer = OutputWriter("ab", parsing)
    events = [event for i in range(0, len(text), size) for event in writer.feed(text[i : i + size])]
    events = json.loads(json.dumps(events + writer.end()))
    assert writer.items == whole["output"]
    for number, event in enumerate(events):
        EVENTS.validate_python(event | {"sequence_number": number})
    for index, item in enumerate(calls, 1):
        told = [event for event in events if event["output_index"] == index]
        kinds = [event["type"].removeprefix("response.") for event in told]
        num_deltas = kinds.count("function_call_arguments.delta")
        assert kinds == [
            "output_item.added",
            *["function_call_arguments.delta"] * num_deltas,
            "function_call_arguments.done",
            "output_item.done",
        ]
        assert (told[0]["item"]["arguments"], told[0]["item"]["status"]) == ("", "in_progress")
        assert "".join(event["delta"] for event in told[1:-2]) == told[-2]["arguments"] == item.arguments


def test_earlier_reasoning_goes_with_the_message_after_it() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    thought["content"] = [{"type": "reasoning_text", "text": "Hm."}]
    given = [
        {"role": "user", "content": "a"},
        thought,
        {"role": "assistant", "content": "b"},
        thought,
        CALLED,
    ]
    said = to_messages(stored_items(ResponseBody(model="m", input=given).input, "x"))
    assert [message.get("reasoning_content") for message in said] == [None, "Hm.", "Hm."]
    assert said[2]["tool_calls"][0]["id"] == "call_1"


def test_reasoning_is_an_item_of_its_own(checkpoint: Checkpoint) -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    result = replace(RESULT, output=text, finish_reason="stop", payload=None, parsing=Parsing(Family.HARMONY))
    said = Response.model_validate(ended(checkpoint, Asked("ab", {}, datetime.now(UTC)), result))
    assert [item.type for item in said.output] == ["reasoning", "message"]
    assert said.output[0].content[0].text == "Hm."  # type: ignore[union-attr, index]
    assert said.output_text == "Yes."
