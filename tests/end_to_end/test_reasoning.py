"""A model that reasons, by the unmodified OpenAI client, through every process.

The prompt opens its thoughts, and a budget ends them: so even a model that knows nothing of them has some.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.fixtures.deployment import Deployment

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
BUDGET = 5
THINKS = {"chat_template_kwargs": {"thinks": True}, "thinking_budget": BUDGET, "ignore_eos": True}
MARK = "</think>"


@pytest.fixture
def client(running: Deployment) -> Iterator[OpenAI]:
    url = f"{running.client.base_url}/v1"
    with OpenAI(base_url=url, api_key="unused", timeout=90, max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_chat_and_its_stream_tell_reasoning_and_answer_apart(client: OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 40, "temperature": 0}
    options["extra_body"] = THINKS
    whole = client.chat.completions.create(**options)
    message = whole.choices[0].message
    reasoning = message.reasoning_content  # type: ignore[attr-defined]
    assert reasoning
    assert message.content
    assert MARK not in reasoning + message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    counted = whole.usage.completion_tokens_details.reasoning_tokens
    assert counted is not None
    assert BUDGET < counted < whole.usage.completion_tokens == 40
    told = {"reasoning_content": "", "content": ""}
    usage = None
    for chunk in client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            for name in told:
                told[name] += getattr(choice.delta, name, None) or ""
    assert told == {"reasoning_content": reasoning, "content": message.content}
    assert usage is not None
    assert usage.completion_tokens_details == whole.usage.completion_tokens_details
    hidden = client.chat.completions.create(
        **options | {"extra_body": THINKS | {"include_reasoning": False}}
    ).choices[0]
    assert not hasattr(hidden.message, "reasoning_content")
    assert hidden.message.content == message.content


def test_a_response_and_its_stream_have_an_item_of_reasoning(client: OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "input": "hello there", "max_output_tokens": 40}
    options |= {"temperature": 0, "extra_body": THINKS}
    whole = client.responses.create(**options)
    reasoning, message = whole.output
    assert reasoning.type == "reasoning"
    assert message.type == "message"
    assert whole.output_text
    assert reasoning.content
    assert MARK not in reasoning.content[0].text + whole.output_text
    assert whole.usage is not None
    assert BUDGET < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    thought, text = "", ""
    for event in client.responses.create(**options, stream=True):
        if event.type == "response.reasoning_text.delta":
            assert not text
            thought += event.delta
        elif event.type == "response.output_text.delta":
            text += event.delta
    assert (thought, text) == (reasoning.content[0].text, whole.output_text)


def test_a_batch_has_the_parts_of_each_message(running: Deployment) -> None:
    asked = {"messages": HELLO, "max_tokens": 40, "temperature": 0, **THINKS}
    batch_id = running.submit(requests=[asked, asked | {"chat_template_kwargs": None}])
    running.wait_for(batch_id)
    first, second = sorted(running.results(batch_id), key=lambda one: int(one["index"]))
    assert first["message"]["reasoning_content"]
    assert MARK in first["output"]
    assert (second["message"] or {}).get("reasoning_content") is None
