"""Messages and their batches by the unmodified client of Anthropic, through every process."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.tool_endpoint import tool_endpoint

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(running: Deployment) -> Iterator[Anthropic]:
    url = str(running.client.base_url)
    with Anthropic(base_url=url, api_key="unused", timeout=90, max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: Anthropic) -> str:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id).display_name == model.id
    assert model.created_at.year > 2000
    return str(model.id)


def test_a_message_and_its_stream_say_the_same(client: Anthropic, model: str) -> None:
    greedy = {"temperature": 0}  # no longer an argument of the newest client's
    options: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 30, "extra_body": greedy}
    whole = client.messages.create(**options)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", model)
    assert whole.stop_reason in {"max_tokens", "end_turn"}
    assert whole.content[0].type == "text"
    assert 0 < whole.usage.output_tokens <= 30
    counted = client.messages.count_tokens(model=model, messages=HELLO)
    assert whole.usage.cache_read_input_tokens is not None
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    with client.messages.stream(**options) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    kinds = [kind for kind in events if kind != "text"]  # the client's own, beside the deltas
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_the_raw_events_are_those_of_anthropic(running: Deployment, model: str) -> None:
    body = {"model": model, "messages": HELLO, "max_tokens": 3, "stream": True}
    answer = running.client.post("/v1/messages", json=body)
    lines = answer.text.splitlines()
    named = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert named[:2] == ["message_start", "ping"]
    assert "[DONE]" not in answer.text
    assert answer.headers["request-id"]


def test_a_stop_sequence_is_named(client: Anthropic, model: str) -> None:
    greedy = {"temperature": 0}
    options: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 30, "extra_body": greedy}
    text = client.messages.create(**options).content[0].text  # type: ignore[union-attr]
    stop = text[5:8]
    cut = client.messages.create(**options, stop_sequences=["never said", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]
    with client.messages.stream(**options, stop_sequences=[stop]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    assert final.content[0].text == cut.content[0].text  # type: ignore[union-attr]


def test_a_schema_and_a_full_context(client: Anthropic, model: str) -> None:
    structured = client.messages.create(
        model=model,
        messages=HELLO,
        max_tokens=90,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        extra_body={"temperature": 0},
    )
    assert json.loads(structured.content[0].text).keys() == {"name", "age"}  # type: ignore[union-attr]
    assert structured.stop_reason == "end_turn"
    full = client.messages.create(model=model, messages=HELLO, max_tokens=10_000)
    assert full.stop_reason in {"model_context_window_exceeded", "end_turn"}


def test_errors_are_those_that_the_client_knows(client: Anthropic, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude-none", messages=HELLO, max_tokens=3)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index,call-overload]
    assert missing.value.request_id
    content: list[Any] = [{"type": "image", "source": {"type": "url", "url": "https://example.com/x"}}]
    with pytest.raises(anthropic.BadRequestError) as image:
        client.messages.create(model=model, messages=[{"role": "user", "content": content}], max_tokens=3)
    assert "images are not supported" in str(image.value)
    with (
        pytest.raises(anthropic.BadRequestError),
        client.messages.stream(
            model=model, messages=[{"role": "user", "content": "x " * 5000}], max_tokens=3
        ),
    ):
        pass


def test_a_batch_makes_its_own_calls(client: Anthropic, model: str) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    params: Any = {"model": model, "max_tokens": 100, "messages": HELLO}
    params |= {"tools": [{"name": "stop", "input_schema": schema}]}
    params |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with tool_endpoint() as endpoint:
        params |= {"tool_endpoint": {"url": endpoint.url}}
        batch = client.messages.batches.create(requests=[{"custom_id": "row", "params": params}])
        eventually(
            lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended",
            what="the end of the batch",
        )
        assert [body["name"] for _, body in endpoint.calls] == ["stop"]
    (found,) = client.messages.batches.results(batch.id)
    assert found.result.type == "succeeded"
    (turn,) = found.result.message.to_dict()["tool_turns"]  # type: ignore[misc]
    assert turn["calls"][0]["answer"] == "42"  # type: ignore[index]


def test_a_batch(client: Anthropic, model: str) -> None:
    params: Any = {"model": model, "max_tokens": 4, "messages": HELLO}
    batch = client.messages.batches.create(
        requests=[{"custom_id": f"row-{i}", "params": params} for i in range(5)]
    )
    assert batch.processing_status == "in_progress"

    def ended() -> bool:
        return client.messages.batches.retrieve(batch.id).processing_status == "ended"

    eventually(ended, what="the end of the batch")
    found = list(client.messages.batches.results(batch.id))
    assert sorted(one.custom_id for one in found) == [f"row-{i}" for i in range(5)]
    for one in found:
        assert one.result.type == "succeeded"
        assert one.result.message.content[0].type == "text"
        assert 0 < one.result.message.usage.output_tokens <= 4
    assert batch.id in [one.id for one in client.messages.batches.list(limit=2)]
    assert client.messages.batches.cancel(batch.id).processing_status == "ended"
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)
