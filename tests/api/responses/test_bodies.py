"""What a body of a response may ask for, and what is refused."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.responses.conftest import Ask, prompts
from worker.settings import Settings
from worker.store.database.session import Store


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": "gpt-4"}, "model", "does not serve"),
        ({"background": True, "store": False}, "store", "must not be false with background"),
        ({"stream_options": {}, "stream": True, "max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "input and instructions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "define a function"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "previous_response_id"),
        ({"input": [{"type": "image_generation_call"}]}, "input[0]", "'image_generation_call'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "send text only",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "alien"}}}},
            "text.format.schema",
            "",
        ),
        ({"input": "x" * 64}, "input", "Shorten the prompt"),
        ({"max_output_tokens": 60}, "input", "Set max_output_tokens to at most"),
        ({"input": [{"role": "alien", "content": "x"}]}, "input[0].role", "must be"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    ask: Ask, fields: dict[str, Any], param: str, message: str
) -> None:
    found = ask(**fields)
    error = found.json()["error"]
    assert found.status_code in {400, 404}
    assert (error["param"], message in error["message"]) == (param, True), error


def test_truncation_drops_the_oldest_turns(store: Store, ask: Ask) -> None:
    turns = [{"role": "developer", "content": "D"}]
    for number in "123":
        turns += [{"role": "user", "content": number * 8}, {"role": "assistant", "content": "a"}]
    turns.append({"role": "user", "content": "last"})
    assert ask(background=True, input=turns, max_output_tokens=5).status_code == 400
    assert ask(background=True, input=turns, max_output_tokens=5, truncation="auto").status_code == 200
    assert prompts(store) == ["<system>D<user>33333333<assistant>a<user>last<assistant>"]


def test_a_batch_of_lines(client: TestClient, config: Settings) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses"}

    def put(**fields: Any) -> Any:
        body = {"model": config.model.name, "input": "hi"} | fields
        given = json.dumps(line | {"body": body}).encode()
        return client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", given)})

    assert put(max_output_tokens=5, text={"format": {"type": "json_object"}}).status_code == 200
    for name, value in (("stream", True), ("background", True), ("previous_response_id", "resp_1")):
        (error,) = put(**{name: value}).json()["error"]["lines"]
        assert error["param"] == f"body.{name}"
    asked = {"endpoint": "/v1/responses", "completion_window": "24h"}
    asked["input_file_id"] = put().json()["id"]
    assert client.post("/v1/batches", json=asked).json()["endpoint"] == "/v1/responses"
