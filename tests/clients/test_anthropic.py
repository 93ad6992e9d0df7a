from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.clients.conftest import ANIMAL, KEY, MODEL

HELLO: list[Any] = [{"role": "user", "content": "def read_lines(path):"}]
TOOLS: list[Any] = [{"name": "look", "description": "Look.", "input_schema": ANIMAL}]


@pytest.fixture
def client(url: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=url, api_key=KEY, timeout=120, max_retries=0) as client:
        yield client


def test_a_message_and_its_stream(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "system": "Be brief."}
    options["extra_body"] = {"temperature": 0}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=HELLO, system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_tool_that_must_be_called_and_its_result(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 90, "tools": TOOLS}
    choice: Any = {"type": "tool", "name": "look"}
    found = client.messages.create(**options, messages=HELLO, tool_choice=choice)
    (call,) = [block for block in found.content if block.type == "tool_use"]
    assert found.stop_reason == "tool_use"
    assert (call.name, set(call.input)) == ("look", {"kind", "age"})
    with client.messages.stream(**options, messages=HELLO, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == [block.type for block in found.content]
    assert set(streamed.content[-1].input) == {"kind", "age"}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "42"}
    conversation: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(**options | {"max_tokens": 5}, messages=conversation)
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens > 0


def test_a_batch(client: Anthropic, eventually: Callable[..., Any]) -> None:
    params: Any = {"model": MODEL, "max_tokens": 4, "messages": HELLO}
    batch = client.messages.batches.create(
        requests=[{"custom_id": f"row-{i}", "params": params} for i in range(5)]
    )
    eventually(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
    found = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
    assert sorted(found) == [f"row-{i}" for i in range(5)]
    assert {one.type for one in found.values()} == {"succeeded"}
    client.messages.batches.delete(batch.id)


def test_models_and_errors(client: Anthropic) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-none", messages=HELLO, max_tokens=4)
