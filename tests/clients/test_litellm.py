import json
from collections.abc import Callable
from typing import Any

import litellm
import pytest

from tests.clients.conftest import ANIMAL, KEY, MODEL

HELLO: list[Any] = [{"role": "user", "content": "def read_lines(path):"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": ANIMAL}}]


@pytest.fixture
def ours(openai_url: str) -> dict[str, Any]:
    return {"api_base": openai_url, "api_key": KEY, "timeout": 120}


def test_a_chat_and_its_stream(ours: dict[str, Any]) -> None:
    options = {"model": f"openai/{MODEL}", "messages": HELLO, "max_tokens": 12, "temperature": 0, **ours}
    whole = litellm.completion(**options)
    parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, stream=True)]
    assert "".join(parts) == whole.choices[0].message.content
    assert whole.usage.completion_tokens > 0


def test_a_tool_that_must_be_called(ours: dict[str, Any]) -> None:
    found = litellm.completion(
        model=f"openai/{MODEL}", messages=HELLO, max_tokens=90, tools=TOOLS, tool_choice="required", **ours
    )
    call = found.choices[0].message.tool_calls[0]
    assert call.function.name == "look"
    assert set(json.loads(call.function.arguments)) == {"kind", "age"}


def test_embeddings(ours: dict[str, Any]) -> None:
    found = litellm.embedding(model=f"openai/{MODEL}", input=["one"], encoding_format="float", **ours)
    assert found.data[0]["embedding"]


def test_files_and_batches(ours: dict[str, Any], eventually: Callable[..., Any]) -> None:
    own = ours | {"custom_llm_provider": "openai"}
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
    lines = [
        {"custom_id": f"row-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(3)
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = litellm.create_file(file=("in.jsonl", content), purpose="batch", **own)
    batch = litellm.create_batch(
        completion_window="24h", endpoint="/v1/chat/completions", input_file_id=file.id, **own
    )
    eventually(lambda: litellm.retrieve_batch(batch_id=batch.id, **own).status == "completed")
    done = litellm.retrieve_batch(batch_id=batch.id, **own)
    found = litellm.file_content(file_id=done.output_file_id, **own).content.decode().splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in found) == ["row-0", "row-1", "row-2"]


def test_anthropics_face(url: str) -> None:
    options = {"model": f"anthropic/{MODEL}", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    own = {"api_base": url, "api_key": KEY, "timeout": 120}
    whole = litellm.completion(**options, **own)
    parts = [
        chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, **own, stream=True)
    ]
    assert "".join(parts) == whole.choices[0].message.content
