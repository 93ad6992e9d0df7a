"""Tool loops at the door: what is stored of them, what is refused, and how their record is answered."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.anthropic.answers import to_message, to_result_line
from api.batches.answers import to_result
from api.batches.following import to_row
from api.files.endpoints import to_body
from api.files.lines import WrongLineError, read_line
from api.files.translator import Translator
from api.files.writing import to_line
from api.inputs.checkpoint import Checkpoint
from api.inputs.tool_loops import ToolLimits
from api.main import create_app
from api.openai.bodies import Endpoint
from api.openai.requests import from_line
from tests.api.openai.test_answers import RESULT
from tests.fixtures.batches import LEASE, held, result
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome
from worker.values.results import MadeCall, NewResult, Payload, RequestError, ToolTurn
from worker.values.tool_loops import OnFailure, ToolLoop

KNOWS = "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}"
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
URL = "https://tools.example.com/run"
CHATS = Endpoint.CHAT_COMPLETIONS
CHAT = {"messages": HELLO, "tools": TOOLS, "max_tokens": 9}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "caller"
    directory.mkdir()
    return write_checkpoint(directory, chat_template=KNOWS + TEMPLATE)


@pytest.fixture
def client(store: Store, config: Settings, model: Path) -> Iterator[TestClient]:  # noqa: ARG001 - empties
    changed = config.model_copy(update={"model": model, "max_tool_turns": 9, "max_tool_seconds": 20.0})
    with TestClient(create_app(changed), raise_server_exceptions=False) as client:
        yield client


def submit(client: TestClient, *requests: dict[str, Any], **batch: Any) -> str:
    answer = client.post("/v1/batch/async", json={"requests": requests, **batch})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["batch_id"])


def stored(store: Store) -> list[ToolLoop | None]:
    with store.transaction() as session:
        found = session.scalars(text("SELECT tool_loop FROM requests ORDER BY id")).all()
    return [None if one is None else ToolLoop.from_json(one) for one in found]


def test_requests_have_their_own_endpoint_or_the_batchs(client: TestClient, store: Store) -> None:
    own = {"url": URL + "/own", "max_turns": 3, "timeout_seconds": 2.5, "on_failure": "tell_model"}
    submit(
        client,
        CHAT | {"tool_endpoint": own},
        CHAT,
        {"messages": HELLO},
        {"prompt": "hi"},
        tool_endpoint={"url": URL},
    )
    first, second, *others = stored(store)
    assert first is not None
    assert second is not None
    assert others == [None, None]
    assert (first.url, first.max_turns, first.timeout_seconds) == (URL + "/own", 3, 2.5)
    assert first.on_failure is OnFailure.TELL_MODEL
    assert (second.url, second.max_turns, second.forced) == (URL, 8, None)
    assert second.messages == [{"role": "user", "content": "hi"}]
    assert list(second.tools[0]["function"]["parameters"]["properties"]) == ["z", "a"]


def test_a_forced_choice_is_of_the_first_turns(client: TestClient, store: Store) -> None:
    submit(client, CHAT | {"tool_choice": "required", "tool_endpoint": {"url": URL, "forced_turns": 2}})
    (loop,) = stored(store)
    assert loop is not None
    assert loop.forced is not None
    assert (loop.forced_turns, loop.forced.format is not None) == (2, True)
    with store.transaction() as session:
        params = session.scalar(text("SELECT params FROM requests"))
    assert params is not None
    assert "format" not in params
    assert params["parsing"] == {"family": "hermes", "tools": ["f"]}


def test_identical_requests_with_a_loop_run_each(client: TestClient, store: Store) -> None:
    one = CHAT | {"temperature": 0.0}
    submit(client, one, one, one | {"tool_endpoint": {"url": URL}}, one | {"tool_endpoint": {"url": URL}})
    with store.transaction() as session:
        digests = session.scalars(text("SELECT digest FROM requests ORDER BY id")).all()
    assert digests[0] == digests[1] is not None
    assert digests[2:] == [None, None]


def test_the_loop_counts_as_stored_bytes(client: TestClient, store: Store) -> None:
    submit(client, CHAT)
    submit(client, CHAT | {"tool_endpoint": {"url": URL}})
    with store.transaction() as session:
        plain, loop = session.scalars(text("SELECT stored_bytes FROM batches ORDER BY created_at")).all()
    assert loop > plain + len(URL)


def responses_line(model: Path, **endpoint: Any) -> bytes:
    """Return a file with one response, which must call, and may do so twice."""
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    body = {"model": model.name, "input": "hi", "tools": tools, "tool_choice": "required"}
    body |= {"tool_endpoint": {"url": URL} | endpoint, "max_output_tokens": 9}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    return json.dumps(line).encode()


def message(model: Path, **endpoint: Any) -> dict[str, Any]:
    """Return the body of a message, which must call."""
    tools = [{"name": "f", "input_schema": SCHEMA}]
    body = {"model": model.name, "max_tokens": 9, "messages": HELLO, "tools": tools}
    return body | {"tool_choice": {"type": "any"}, "tool_endpoint": {"url": URL} | endpoint}


def test_lines_of_responses_have_loops(model: Path, config: Settings) -> None:
    limits = ToolLimits.of(config)
    translate = Translator(Checkpoint.load(model), 1000, limits)
    loop = translate(read_line(responses_line(model, forced_turns=2, max_turns=3))).tool_loop
    assert loop is not None
    assert (loop.url, loop.forced_turns, loop.max_turns) == (URL, 2, 3)
    with pytest.raises(WrongLineError, match=r"body\.tool_endpoint\.url"):
        translate(read_line(responses_line(model, url="http://169.254.169.254/")))


def test_batches_of_messages_have_loops(client: TestClient, store: Store, model: Path) -> None:
    bodies = [message(model, forced_turns=2), message(model, url="http://10.0.0.1/"), message(model)]
    bodies[2] |= {"tools": None, "tool_choice": None}
    requests = [{"custom_id": f"row-{i}", "params": params} for i, params in enumerate(bodies)]
    batch = client.post("/v1/messages/batches", json={"requests": requests}).json()
    assert batch["request_counts"]["errored"] == 2
    loop, *others = stored(store)
    assert others == [None, None]
    assert loop is not None
    assert loop.forced is not None
    assert (loop.url, loop.forced_turns, loop.forced.must_fit) == (URL, 2, False)
    told = client.get(f"/v1/batch/{batch['id']}/results").json()["data"]
    assert [one["error"]["code"] for one in told] == ["forbidden_url", "invalid_value"]
    assert all(one["error"]["message"].startswith("tool_endpoint") for one in told)


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"tool_endpoint": {"url": "http://169.254.169.254/"}}, "tool_endpoint.url", "forbidden_url"),
        ({"tool_endpoint": {"url": "ftp://x"}}, "tool_endpoint.url", "forbidden_url"),
        ({"tool_endpoint": {"url": URL, "max_turns": 10}}, "tool_endpoint.max_turns", "out_of_range"),
        ({"tool_endpoint": {"url": URL, "max_turns": 0}}, "tool_endpoint.max_turns", "out_of_range"),
        (
            {"tool_endpoint": {"url": URL, "timeout_seconds": 21}},
            "tool_endpoint.timeout_seconds",
            "out_of_range",
        ),
        ({"tool_endpoint": {"url": URL, "retries": 2}}, "tool_endpoint.retries", "unknown_field"),
        ({"tool_endpoint": {"url": URL, "forced_turns": 2}}, "tool_endpoint.forced_turns", "invalid_value"),
        ({"tool_endpoint": {"url": URL}, "tool_choice": "none"}, "tool_endpoint", "invalid_value"),
        ({"tool_endpoint": {"url": URL}, "tools": None}, "tool_endpoint", "invalid_value"),
        ({"tool_endpoint": {"url": URL}, "n": 2}, "tool_endpoint", "invalid_value"),
        ({"tool_endpoint": {"url": URL}, "prompt_logprobs": 1}, "tool_endpoint", "invalid_value"),
        ({"tool_endpoint": {"url": URL}, "add_generation_prompt": False}, "tool_endpoint", "invalid_value"),
    ],
)
def test_what_cannot_be_run_is_refused(
    client: TestClient, model: Path, changes: dict[str, Any], param: str, code: str
) -> None:
    error = client.post("/v1/batch/async", json={"requests": [CHAT | changes]}).json()["error"]
    assert (error["param"], error["code"]) == (f"requests[0].{param}", code)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    content = json.dumps(line | {"body": CHAT | {"model": model.name} | changes}).encode()
    sent = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})
    (told,) = sent.json()["error"]["lines"]
    assert (told["param"], told["code"]) == (f"body.{param}", code)


def test_only_batches_have_loops(client: TestClient, model: Path) -> None:
    body = CHAT | {"model": model.name, "tool_endpoint": {"url": URL}}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_endpoint"
    lone = json.loads(responses_line(model))["body"]
    for path, body in (("/v1/responses", lone), ("/v1/messages", message(model))):
        for more in ({}, {"stream": True}) + (({"background": True},) if "input" in body else ()):
            error = client.post(path, json=body | more).json()["error"]
            assert error["message"].startswith("tool_endpoint: is for requests of batches"), (path, more)
    plain = {"prompt": "a", "tool_endpoint": {"url": URL}}
    assert client.post("/v1/batch/async", json={"requests": [plain]}).status_code == 422
    older = {"model": model.name, "messages": HELLO, "functions": [{"name": "f"}]}
    sent = client.post("/v1/batch/async", json={"requests": [older]})
    assert sent.status_code == 422


def test_the_older_form_has_no_loop(model: Path) -> None:
    body = {
        "model": model.name,
        "messages": HELLO,
        "functions": [{"name": "f"}],
        "tool_endpoint": {"url": URL},
    }
    with pytest.raises(Exception, match=r"tool_endpoint: requires tools"):
        from_line(Checkpoint.load(model), Endpoint.CHAT_COMPLETIONS, body, custom_id="a")


def save(store: Store, *results: NewResult) -> None:
    claimed = held(store, 1)
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, 0, is_last=True)], lease=LEASE)


def test_a_result_has_the_record_of_its_calls(client: TestClient, store: Store) -> None:
    batch_id = submit(client, CHAT | {"tool_endpoint": {"url": URL}}, CHAT | {"tool_endpoint": {"url": URL}})
    calls = (
        MadeCall("call_1", "f", '{"z": "x"}', answer="42", status_code=200, seconds=0.5, attempts=1),
        MadeCall("call_2", "f", "{}", error="HTTP 404: no", status_code=404, seconds=0.25, attempts=1),
    )
    turn = ToolTurn(1, 'Hm.<tool_call>{"name": "f", "arguments": {}}</tool_call>', calls, 10, 8, 5)
    record = Payload(tool_turns=(turn,), num_guessed_tokens=9, num_right_tokens=4)
    done, failure = result(1, output="It is 42."), result(2, outcome=Outcome.FAILED)
    error = RequestError("tool_call_failed", "the call of 'f' failed")
    save(
        store,
        NewResult(**{name: getattr(done, name) for name in done.__slots__} | {"payload": record}),
        NewResult(
            **{name: getattr(failure, name) for name in failure.__slots__}
            | {"payload": record, "output": None, "error": error}
        ),
    )
    first, second = client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    assert (first["message"]["content"], first["tool_turns"]) == ("It is 42.", second["tool_turns"])
    assert second["error"]["code"] == "tool_call_failed"
    assert (first["usage"]["guessed_tokens"], first["usage"]["right_tokens"]) == (9, 4)
    ((told,),) = [first["tool_turns"]]
    assert (told["turn"], told["content"]) == (1, "Hm.")
    assert (told["input_tokens"], told["cached_tokens"], told["output_tokens"]) == (10, 8, 5)
    assert [call["answer"] for call in told["calls"]] == ["42", None]
    assert told["calls"][1] == {
        "id": "call_2",
        "name": "f",
        "arguments": "{}",
        "answer": None,
        "error": "HTTP 404: no",
        "status_code": 404,
        "seconds": 0.25,
        "attempts": 1,
    }


def test_every_face_has_the_record_of_its_calls(model: Path) -> None:
    calls = (MadeCall("call_1", "f", "{}", answer="42", status_code=200, seconds=0.5, attempts=1),)
    record = Payload(tool_turns=(ToolTurn(1, "Hm.", calls, 10, 8, 5),))
    checkpoint = Checkpoint.load(model)
    done = replace(RESULT, payload=record)
    ended = replace(
        done, outcome=Outcome.FAILED, output=None, error_code="tool_call_failed", error_message="f failed"
    )
    answers = [to_body(checkpoint, one, done, batch_id="b") for one in (CHATS, Endpoint.RESPONSES)]
    answers += [to_message(checkpoint, done, batch_id="b")]
    answers += [to_result_line(checkpoint, ended, batch_id="b")["result"]]
    answers += [to_line(checkpoint, Endpoint.RESPONSES, "b", ended)["response"]["body"]]
    stopped = replace(ended, outcome=Outcome.CANCELLED, error_code="batch_cancelled")
    answers += [to_result_line(checkpoint, stopped, batch_id="b")["result"]]
    answers += [
        to_line(checkpoint, CHATS, "b", one) for one in (stopped, replace(ended, error_code="timeout"))
    ]
    row = to_row(to_result(done, checkpoint))
    for turns in [*(one["tool_turns"] for one in answers), json.loads(row["tool_turns"])]:
        ((turn,),) = [turns]
        assert (turn["content"], turn["calls"][0]["answer"]) == ("Hm.", "42")
    assert "tool_turns" not in to_message(checkpoint, RESULT, batch_id="b")
    assert to_row(to_result(RESULT, checkpoint))["tool_turns"] is None


def test_a_retry_runs_the_loop_again(client: TestClient, store: Store) -> None:
    batch_id = submit(client, CHAT | {"tool_endpoint": {"url": URL}})
    failure = result(1, outcome=Outcome.FAILED)
    save(store, failure)
    answer = client.post(f"/v1/batch/{batch_id}/retry")
    assert answer.status_code == 202, answer.text
    first, second = stored(store)
    assert first == second is not None
