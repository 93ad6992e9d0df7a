"""The calls of OpenAI's client that its old and its new version share."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import ANIMAL, KEY, MODEL

HELLO: list[Any] = [{"role": "user", "content": "def read_lines(path):"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": ANIMAL}}
]


@pytest.fixture
def client(openai_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=openai_url, api_key=KEY, timeout=120, max_retries=0) as client:
        yield client


def test_a_chat_and_its_stream(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 12
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**options, stream=True)
    ]
    assert "".join(parts) == text


def test_a_completion_with_logprobs(client: OpenAI) -> None:
    found = client.completions.create(model=MODEL, prompt="import os", max_tokens=4, logprobs=1, seed=1)
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.tokens


def test_a_json_schema(client: OpenAI) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": ANIMAL, "strict": True}}
    found = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=60, response_format=schema)
    assert set(json.loads(found.choices[0].message.content or "")) == {"kind", "age"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called(client: OpenAI, choice: Any, stream: bool) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 90, "tools": TOOLS}
    if stream:
        name, arguments, reasons = "", "", []
        for chunk in client.chat.completions.create(**options, tool_choice=choice, stream=True):
            reasons.append(chunk.choices[0].finish_reason)
            for call in chunk.choices[0].delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    else:
        found = client.chat.completions.create(**options, tool_choice=choice, parallel_tool_calls=False)
        (call,) = found.choices[0].message.tool_calls or ()
        name, arguments = call.function.name, call.function.arguments
        answered = client.chat.completions.create(
            model=MODEL,
            max_tokens=5,
            tools=TOOLS,
            messages=[
                *HELLO,
                found.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": "42"},
            ],
        )
        assert answered.choices[0].finish_reason
    if not stream:
        assert name == "look"
        assert set(json.loads(arguments)) == {"kind", "age"}
    else:
        assert name.startswith("look")
        assert arguments.startswith("{")


def test_embeddings(client: OpenAI) -> None:
    first, second = client.embeddings.create(model=MODEL, input=["one", "two"]).data
    assert len(first.embedding) == len(second.embedding) > 0


def test_a_batch_from_a_file(client: OpenAI, eventually: Callable[..., Any]) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
    lines = [
        {"custom_id": f"row-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(5)
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
    done = client.batches.retrieve(batch.id)
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (5, 0)
    found = [json.loads(line) for line in client.files.content(done.output_file_id or "").text.splitlines()]
    assert sorted(one["custom_id"] for one in found) == [f"row-{i}" for i in range(5)]
    assert batch.id in [one.id for one in client.batches.list(limit=5).data]


def test_models_and_errors(client: OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
    assert raised.value.param == "temperature"


def test_a_response_its_stream_and_one_in_the_background(
    client: OpenAI, eventually: Callable[..., Any]
) -> None:
    options: dict[str, Any] = {"model": MODEL, "input": "def read_lines(path):", "max_output_tokens": 12}
    options["temperature"] = 0
    whole = client.responses.create(**options)
    events = list(client.responses.create(**options, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", f"response.{whole.status}")
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == whole.output_text
    next_one = client.responses.create(**options | {"input": "More."}, previous_response_id=whole.id)
    assert len(client.responses.input_items.list(next_one.id).data) == 3
    later = client.responses.create(**options, background=True)
    eventually(lambda: client.responses.retrieve(later.id).status == whole.status)
    assert client.responses.retrieve(later.id).output_text == whole.output_text
    for response in (next_one, whole, later):
        client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(later.id)
