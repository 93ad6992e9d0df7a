"""Tool loops at the door: what is stored of them, what is refused, and how their record is answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.inputs.checkpoint import Checkpoint
from api.main import create_app
from api.openai.bodies import Endpoint
from api.openai.requests import from_line
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
    record = Payload(tool_turns=(turn,))
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


def test_a_retry_runs_the_loop_again(client: TestClient, store: Store) -> None:
    batch_id = submit(client, CHAT | {"tool_endpoint": {"url": URL}})
    failure = result(1, outcome=Outcome.FAILED)
    save(store, failure)
    answer = client.post(f"/v1/batch/{batch_id}/retry")
    assert answer.status_code == 202, answer.text
    first, second = stored(store)
    assert first == second is not None
