"""The routes that ask only the tokenizer."""

import pytest
from fastapi.testclient import TestClient

from api.inputs.checkpoint import Checkpoint
from tests.fixtures.checkpoint import CONTEXT, TEMPLATE


@pytest.fixture
def checkpoint(client: TestClient) -> Checkpoint:
    found: Checkpoint = client.app.state.services.checkpoint  # type: ignore[attr-defined]
    return found


def test_a_text_and_back(client: TestClient, checkpoint: Checkpoint) -> None:
    text = "caf\xe9 \U0001f642!"
    said = client.post(
        "/tokenize", json={"model": checkpoint.name, "prompt": text, "return_token_strs": True}
    )
    ids = checkpoint._tokenizer.encode(text).ids
    names = [checkpoint._tokenizer.id_to_token(token) for token in ids]
    assert said.json() == {"count": 11, "max_model_len": CONTEXT, "tokens": ids, "token_strs": names}
    assert said.headers["x-request-id"]
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": text}
    assert client.post("/tokenize", json={"prompt": ""}).json()["count"] == 0


def test_a_conversation(client: TestClient, checkpoint: Checkpoint) -> None:
    messages = [{"role": "user", "content": "hi"}]
    said = client.post("/tokenize", json={"messages": messages}).json()
    assert checkpoint.text_of(said["tokens"]) == checkpoint.template.render(messages) == "<user>hi<assistant>"
    assert said["token_strs"] is None
    bare = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert checkpoint.text_of(bare["tokens"]) == "<user>hi"


def test_special_tokens_are_added_to_a_prompt_only(
    client: TestClient, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[bool] = []

    def encode(text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG001
        added.append(add_special_tokens)
        return []

    monkeypatch.setattr(checkpoint, "encode", encode)
    prompt, messages = {"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}
    for body in (
        prompt,
        messages,
        prompt | {"add_special_tokens": False},
        messages | {"add_special_tokens": True},
    ):
        assert client.post("/tokenize", json=body).status_code == 200
    assert added == [True, False, False, True]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "body"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "body"),
        ("/tokenize", {"prompt": "a" * 10_001}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "tokens": [1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, 256]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "gpt-4"}, 404, "model"),
    ],
)
def test_what_is_refused(client: TestClient, path: str, body: dict, status: int, param: str) -> None:
    said = client.post(path, json=body)
    assert (said.status_code, said.json()["error"]["param"]) == (status, param), said.text


def test_the_tokenizer(client: TestClient) -> None:
    said = client.get("/tokenizer_info").json()
    assert (said["eos_token"], said["bos_token"], said["chat_template"]) == ("!", None, TEMPLATE)
    assert said["model_max_length"] == CONTEXT


def test_the_version(client: TestClient) -> None:
    assert client.get("/version").json() == {"version": client.get("/openapi.json").json()["info"]["version"]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/version", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/none", 404),
        ("GET", "/nowhere", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/completions", 400),
        ("POST", "/v1/chat/completions", 400),
        ("POST", "/v1/batch/async", 422),
        ("GET", "/docs", 200),
    ],
)
def test_every_answer_has_the_id_of_its_request(
    client: TestClient, method: str, path: str, status: int
) -> None:
    said = client.request(
        method, path, headers={"x-request-id": "mine"}, json={} if method == "POST" else None
    )
    assert (said.status_code, said.headers["x-request-id"]) == (status, "mine")
