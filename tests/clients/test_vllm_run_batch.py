"""Files of `vllm run-batch`, as its documentation shows them, through the client that reads their results."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from tests.clients.conftest import KEY, MODEL

CHAT = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello world!"},
    ],
    "max_completion_tokens": 8,
    "min_tokens": 2,
    "structured_outputs": {"regex": "[a-z]{2,9}"},
}
EMBEDDING = {"model": MODEL, "input": "You are a helpful assistant."}


@pytest.mark.parametrize(
    ("endpoint", "body"), [("/v1/chat/completions", CHAT), ("/v1/embeddings", EMBEDDING)]
)
def test_a_file(openai_url: str, eventually: Callable[..., Any], endpoint: str, body: dict[str, Any]) -> None:
    client = OpenAI(base_url=openai_url, api_key=KEY, timeout=120)
    lines = [{"custom_id": f"request-{i}", "method": "POST", "url": endpoint, "body": body} for i in (1, 2)]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("openai_example_batch.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
    done = client.batches.retrieve(batch.id)
    for line in client.files.content(done.output_file_id or "").text.splitlines():
        found = json.loads(line)
        # The fields that vLLM writes.
        assert set(found) >= {"id", "custom_id", "response", "error"}
        assert found["response"]["status_code"] == 200
        assert found["response"]["request_id"]
        assert found["response"]["body"]["object"] in {"chat.completion", "list"}
