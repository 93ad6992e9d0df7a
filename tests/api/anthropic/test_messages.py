"""What Anthropic's clients send becomes the chat that OpenAI's would send, and errors have their shape."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.anthropic.bodies import NewMessage
from api.anthropic.requests import to_message_request
from api.errors import ApiError
from api.inputs.checkpoint import Checkpoint
from api.main import create_app
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import to_request
from tests.fixtures.access import make_key
from tests.fixtures.checkpoint import CONTEXT, TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path, chat_template=TEMPLATE))


def asked(checkpoint: Checkpoint, **body: Any) -> NewRequest:
    whole = {"model": checkpoint.name, "max_tokens": 9, **body}
    return to_message_request(checkpoint, NewMessage.model_validate(whole))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def test_turns_become_a_rendered_prompt(checkpoint: Checkpoint) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b"), text("c")]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, text("d")],
        },
        {"role": "user", "content": "e"},
    ]
    found = asked(checkpoint, messages=messages, system=[text("be brief"), text("be kind")])
    assert found == NewRequest(
        prompt="<system>be brief\nbe kind<user>a\nb\nc<assistant>d<user>e<assistant>",
        max_tokens=9,
        params=SamplingParams(max_tokens=9, temperature=1.0),
        add_special_tokens=False,
        model=checkpoint.model,
    )


def test_every_option_counts(checkpoint: Checkpoint) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    found = asked(
        checkpoint,
        messages=HELLO,
        temperature=0,
        top_p=0.5,
        top_k=6,
        stop_sequences=["x", "y"],
        stream=True,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        metadata={"user_id": "u"},
        service_tier="auto",
        thinking={"type": "disabled"},
    )
    assert found.is_streamed
    assert isinstance(found.params, SamplingParams)
    assert found.params.format == OutputFormat(
        FormatKind.JSON_SCHEMA, '{"type": "object", "properties": {}, "additionalProperties": false}'
    )
    assert (found.params.temperature, found.params.top_p, found.params.top_k) == (0, 0.5, 6)
    assert found.params.stop == ("x", "y")


def test_an_answer_that_was_begun_is_continued(checkpoint: Checkpoint) -> None:
    found = asked(checkpoint, messages=[*HELLO, {"role": "assistant", "content": "It is"}])
    assert found.prompt == "<user>hello<assistant>It is"


@pytest.mark.parametrize(
    ("thinking", "same"),
    [
        ({"type": "enabled", "budget_tokens": 7}, {"enable_thinking": True, "thinking_budget": 7}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive"}, {}),
    ],
)
def test_thinking_is_a_chats(tmp_path: Path, thinking: dict[str, Any], same: dict[str, Any]) -> None:
    template = TEMPLATE + "{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"
    served = Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))
    found = asked(served, messages=HELLO, thinking=thinking)
    chat = {"model": served.name, "messages": HELLO, "max_tokens": 9, **same}
    wanted = to_request(served, read_body(Endpoint.CHAT_COMPLETIONS, chat))
    assert (found.prompt, found.params) == (wanted.prompt, replace(wanted.params, must_fit=False))  # type: ignore[type-var, arg-type]
    assert found.prompt.endswith("<think></think>" if thinking["type"] == "disabled" else "<think>")


LOOK = {
    "name": "look",
    "description": "Look.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}


def test_tools_are_those_of_a_chat(checkpoint: Checkpoint) -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "me"}}
    answer = {"type": "tool_result", "tool_use_id": "call_1", "content": [text("seen")]}
    messages = [
        *HELLO,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [answer, text("so?")]},
    ]
    found = asked(checkpoint, messages=messages, tools=[LOOK], tool_choice={"type": "any"})
    chat = {
        "model": checkpoint.name,
        "max_tokens": 9,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Look.",
                    "parameters": LOOK["input_schema"],
                },
            }
        ],
        "tool_choice": "required",
        "messages": [
            *HELLO,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at": "me"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
            {"role": "user", "content": "so?"},
        ],
    }
    same = to_request(checkpoint, read_body(Endpoint.CHAT_COMPLETIONS, chat))
    assert isinstance(found.params, SamplingParams)
    assert isinstance(same.params, SamplingParams)
    assert found.prompt == same.prompt
    assert "seen" in found.prompt
    assert replace(found.params, must_fit=True) == same.params
    assert found.params.parsing is not None
    assert found.params.parsing.tools == ("look",)
    assert found.params.format is not None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": "claude"}, "model"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "mystery"}}}},
            "output_config",
        ),
    ],
)
def test_what_only_the_checkpoint_can_refuse_has_the_name_that_was_sent(
    checkpoint: Checkpoint, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, **{"messages": HELLO} | changes)
    assert str(raised.value.param).startswith(param)
    assert raised.value.message.startswith(str(raised.value.param))


def post(client: TestClient, **changes: Any) -> Any:
    body = {"model": client.get("/v1/models").json()["data"][0]["id"], "max_tokens": 5, "messages": HELLO}
    changed = {key: value for key, value in (body | changes).items() if value is not None}
    return client.post("/v1/messages", json=changed)


@pytest.mark.parametrize(
    ("changes", "status", "name", "message"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: is required"),
        ({"model": "claude-x"}, 404, "not_found_error", "model: this server does not serve 'claude-x'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]: images are not supported; send text only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]: documents are not supported; send text only",
        ),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers: is not supported by this server"),
        ({}, 503, "overloaded_error", "No worker serves"),
    ],
)
def test_errors_have_anthropics_shape(
    client: TestClient, changes: dict[str, Any], status: int, name: str, message: str
) -> None:
    answer = post(client, **changes)
    assert answer.status_code == status
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", name)
    assert found["error"]["message"].startswith(message)
    assert found["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_what_no_route_answers_has_anthropics_shape_too(client: TestClient, config: Settings) -> None:
    too_large = client.post("/v1/messages", content=b"x" * (config.max_body_bytes + 1))
    assert (too_large.status_code, too_large.json()["error"]["type"]) == (413, "request_too_large")
    for answer, status in (
        (client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"}), 400),
        (client.post("/v1/messages", content=b"x"), 415),
        (client.get("/v1/messages"), 405),
        (client.get("/v1/messages/none/none/none"), 404),
    ):
        assert (answer.status_code, answer.json()["type"]) == (status, "error"), answer.text
    # A neighbour keeps the shape of the plain API.
    assert "type" not in client.get("/v1/message").json()


def test_the_key_may_come_as_anthropics_clients_send_it(store: Store, config: Settings) -> None:
    key = make_key(store)
    app = create_app(config.model_copy(update={"auth": "keys"}))
    with TestClient(app, raise_server_exceptions=False) as client:
        for headers in ({}, {"x-api-key": "hr_unknown"}):
            refused = client.get("/v1/messages/batches", headers=headers)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        for path in ("/v1/messages/batches", "/v1/batch/stats", "/v1/models"):
            assert client.get(path, headers={"x-api-key": key}).status_code == 200
        bad = client.get("/v1/models", headers={"x-api-key": "hr_unknown", "anthropic-version": "2023-06-01"})
        assert (bad.status_code, bad.json()["type"]) == (401, "error")
        large = {"content": b" " * 70_000, "headers": {"x-api-key": key}}
        assert client.post("/v1/messages", **large).status_code == 415  # type: ignore[arg-type]


def test_tokens_are_counted_as_the_engine_sees_them(client: TestClient) -> None:
    model = client.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "system": "s", "messages": HELLO}
    counted = client.post("/v1/messages/count_tokens", json=body)
    assert counted.json() == {"input_tokens": len("<system>s<user>hello<assistant>")}
    long = body | {"messages": [{"role": "user", "content": "x" * 2 * CONTEXT}]}
    assert client.post("/v1/messages/count_tokens", json=long).json()["input_tokens"] > CONTEXT
    longer = body | {"messages": [{"role": "user", "content": "x" * 10_001}]}
    refused = client.post("/v1/messages/count_tokens", json=longer)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "prompt_too_long")


def test_max_tokens_is_a_limit_and_no_demand(client: TestClient, store: Store) -> None:  # noqa: ARG001
    """Clients send the largest output that they could read, which may be longer than the context."""
    assert post(client, max_tokens=10 * CONTEXT).status_code == 503  # accepted, if a worker were there
    too_long = post(client, messages=[{"role": "user", "content": "x" * CONTEXT}])
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_both_kinds_of_clients_read_the_models(client: TestClient) -> None:
    found = client.get("/v1/models").json()
    (model,) = found["data"]
    assert (found["object"], model["object"]) == ("list", "model")
    assert (found["has_more"], found["first_id"], found["last_id"]) == (False, model["id"], model["id"])
    assert (model["type"], model["display_name"]) == ("model", model["id"])
    assert model["created_at"].endswith("Z")
