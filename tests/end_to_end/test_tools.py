"""Tools by the unmodified OpenAI client: whatever the model, what it must call it calls with valid JSON."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.fixtures.deployment import Deployment
from tests.fixtures.tool_endpoint import tool_endpoint

PAINT: dict[str, Any] = {
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {
            "wall": {"type": "boolean"},
            "color": {"enum": ["red", "green"]},
            "note": {"type": "string", "maxLength": 4},
        },
        "required": ["wall", "color"],
        "additionalProperties": False,
    },
}
STOP: dict[str, Any] = {
    "name": "stop",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": one} for one in (PAINT, STOP)]
ASKED = [{"role": "user", "content": "Paint."}]
CALLED = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "stopped"},
]
REQUIRED: dict[str, Any] = {
    "messages": ASKED,
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.fixture
def client(running: Deployment) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{running.client.base_url}/v1", api_key="unused", timeout=90, max_retries=0
    ) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def is_valid(call: dict[str, Any]) -> bool:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "stop":
        return arguments == {}
    names = [name for name in ("wall", "color", "note") if name in arguments]
    return (
        call["function"]["name"] == "paint"
        and list(arguments) == names
        and isinstance(arguments["wall"], bool)
        and arguments["color"] in {"red", "green"}
        and len(arguments.get("note", "")) <= 4
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "paint"}}])
def test_a_forced_call_is_valid_whole_and_streamed(client: OpenAI, model: str, choice: Any) -> None:
    options = REQUIRED | {"model": model, "tool_choice": choice}
    for seed in range(4):
        whole = client.chat.completions.create(**options, seed=seed).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content is None
        (call,) = whole.message.model_dump()["tool_calls"]
        assert is_valid(call)
        assert choice == "required" or call["function"]["name"] == "paint"
        with client.chat.completions.stream(**options, seed=seed) as stream:
            num_events = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
            streamed = stream.get_final_completion().choices[0]
        assert num_events > 1 or call["function"]["arguments"] == "{}"
        assert streamed.finish_reason == "tool_calls"
        (told,) = streamed.message.model_dump()["tool_calls"]
        assert told["function"]["name"] == call["function"]["name"]
        assert told["function"]["arguments"] == call["function"]["arguments"]


def test_several_calls_and_usage(client: OpenAI, model: str) -> None:
    options = {"model": model, "messages": ASKED, "tools": [TOOLS[1]], "tool_choice": "required", "seed": 1}
    found = client.chat.completions.create(**options, max_tokens=200)  # type: ignore[call-overload]
    calls = found.choices[0].message.tool_calls
    assert all(is_valid(call.model_dump()) for call in calls if call.function.arguments)
    assert len({call.id for call in calls}) == len(calls) > 0
    assert found.usage.completion_tokens > len("<tool_call>")


def test_the_older_form(client: OpenAI, model: str) -> None:
    found = client.chat.completions.create(
        model=model,
        messages=ASKED,  # type: ignore[arg-type]
        functions=[PAINT],  # type: ignore[list-item]
        function_call={"name": "paint"},
        seed=1,
    ).choices[0]
    assert found.finish_reason == "function_call"
    assert found.message.function_call is not None
    assert json.loads(found.message.function_call.arguments)["color"] in {"red", "green"}


def test_a_conversation_with_calls_goes_on(client: OpenAI, model: str) -> None:
    found = client.chat.completions.create(
        model=model,
        messages=[*ASKED, *CALLED],  # type: ignore[list-item]
        tools=TOOLS,  # type: ignore[arg-type]
        max_tokens=5,
    )
    assert found.choices[0].finish_reason in {"length", "stop"}


def test_requests_of_a_plain_batch_call_tools(running: Deployment) -> None:
    batch_id = running.submit(
        requests=[REQUIRED | {"seed": 3}, {"messages": [*ASKED, *CALLED]}], max_tokens=200
    )
    running.wait_for(batch_id, "completed")
    results = running.client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    forced, plain = sorted(results, key=lambda result: result["index"])
    assert forced["finish_reason"] == "tool_calls"
    assert is_valid(forced["message"]["tool_calls"][0])
    assert forced["output"].startswith("<tool_call>")
    assert (plain["message"]["content"], plain["message"]["tool_calls"]) == (plain["output"], None)


def test_a_batch_makes_its_own_calls(running: Deployment) -> None:
    with tool_endpoint(lambda body: (200, f"{body['name']} {body['turn']}")) as endpoint:
        loop = REQUIRED | {
            "tools": [TOOLS[1]],
            "tool_endpoint": {"url": endpoint.url, "forced_turns": 2},
            "seed": 3,
        }
        batch_id = running.submit(requests=[loop], max_tokens=160)
        running.wait_for(batch_id, "completed")
        calls = [(body["name"], body["arguments"], body["turn"]) for _, body in endpoint.calls]
    assert calls == [("stop", {}, 1), ("stop", {}, 2)]
    (result,) = running.client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    first, second = result["tool_turns"]
    assert [call["answer"] for turn in (first, second) for call in turn["calls"]] == ["stop 1", "stop 2"]
    assert second["cached_tokens"] > 0
    assert result["usage"]["cached_tokens"] > second["cached_tokens"]
    assert result["usage"]["output_tokens"] > first["output_tokens"] + second["output_tokens"]
