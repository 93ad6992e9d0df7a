import json
import threading

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.checkpoint import CONTEXT
from worker.store.database.session import Store

HOOK = "https://example.com/hook"


def count(store: Store, table: str = "batches") -> int:
    with store.transaction() as session:
        return session.scalar(text(f"SELECT count(*) FROM {table}")) or 0


def test_an_accepted_batch_is_stored_whole(client: TestClient, store: Store) -> None:
    answer = client.post(
        "/v1/batch/async",
        json={"prompts": ["one", "two", "three"], "callback_url": HOOK, "max_tokens": 5, "temperature": 0},
    )
    assert answer.status_code == 202
    assert answer.json()["status"] == "pending"
    assert answer.json()["requests"] == 3
    assert [count(store, table) for table in ("batches", "shards", "requests", "results")] == [1, 2, 3, 0]
    with store.transaction() as session:
        rows = session.execute(
            text("SELECT prompt, num_prompt_tokens, max_tokens FROM requests ORDER BY position")
        ).all()
    assert [tuple(row) for row in rows] == [("one", 3, 5), ("two", 3, 5), ("three", 5, 5)]


def test_a_request_may_differ_from_its_batch(client: TestClient, store: Store) -> None:
    answer = client.post(
        "/v1/batch/async",
        json={
            "requests": [
                {"custom_id": "a", "prompt": "one"},
                {"custom_id": "b", "prompt": "two", "temperature": 0, "stop": "x", "max_tokens": 9},
            ],
            "temperature": 1.5,
            "seed": 7,
        },
    )
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        own = session.scalars(text("SELECT params FROM requests ORDER BY position")).all()
        shared = session.scalar(text("SELECT params FROM batches"))
    assert own[0] is None
    assert own[1] == shared | {
        "temperature": 0,
        "stop": ["x"],
        "max_tokens": 9,
        "must_fit": True,
    }
    assert (shared["temperature"], shared["seed"]) == (1.5, 7)


def test_a_request_may_have_a_priority_of_its_own(client: TestClient, store: Store) -> None:
    requests = [{"prompt": "one"}, {"prompt": "two", "priority": 5}, {"prompt": "three", "priority": 0}]
    answer = client.post("/v1/batch/async", json={"requests": requests, "priority": 2})
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        rows = session.execute(
            text(
                "SELECT prompt, priority FROM requests r JOIN shards s ON s.id = shard_id ORDER BY r.position"
            )
        ).all()
    assert [tuple(row) for row in rows] == [("one", 2), ("two", 5), ("three", 0)]


def test_the_direction_of_a_priority_is_said(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("BatchSubmission", "BatchRequest", "FileBatchSubmission", "ChatBody", "EmbeddingBody"):
        assert "igher runs sooner" in str(schemas[name]["properties"]["priority"]), name


def test_messages_go_through_the_chat_template(client: TestClient, store: Store) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = client.post("/v1/batch/async", json={"requests": [{"messages": messages}]})
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        row = session.execute(text("SELECT prompt, add_special_tokens FROM requests")).one()
    assert tuple(row) == ("<system>be brief<user>hi<assistant>", False)


def test_max_tokens_that_nobody_asked_for_is_what_the_prompt_leaves(client: TestClient, store: Store) -> None:
    client.post("/v1/batch/async", json={"prompts": ["x" * (CONTEXT - 4)]})
    with store.transaction() as session:
        assert session.scalar(text("SELECT max_tokens FROM requests")) == 4


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("batch/async", {"prompts": ["a", "x" * (CONTEXT - 4)]}, "prompts[1]"),
        ("batch/async", {"requests": [{"prompt": "x" * (CONTEXT - 4)}]}, "requests[0]"),
        ("batch/estimate", {"prompts": ["x" * (CONTEXT - 4)]}, "prompts[0]"),
        ("batch/sync", {"prompts": ["x" * (CONTEXT - 4)], "wait_seconds": 0}, "prompts[0]"),
        ("generate", {"prompt": "x" * (CONTEXT - 4)}, "prompt"),
        ("completions", {"prompt": "x" * (CONTEXT - 4)}, "prompt"),
        ("completions", {"prompt": ["a", "x" * (CONTEXT - 4)]}, "prompt[1]"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * (CONTEXT - 21)}]}, "messages"),
    ],
)
def test_max_tokens_that_was_asked_for_is_never_cut(
    client: TestClient, store: Store, route: str, body: dict[str, object], param: str
) -> None:
    is_openais = "completions" in route
    asked = body | ({"model": client.get("/v1/models").json()["data"][0]["id"]} if is_openais else {})
    answer = client.post(f"/v1/{route}", json=asked | {"max_tokens": 5})
    assert answer.status_code == (400 if is_openais else 422), answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "max_tokens is 5" in error["message"]
    assert "at most 4" in error["message"]
    assert count(store) == 0
    fitting = client.post(f"/v1/{route}", json=asked | {"max_tokens": 4})
    assert fitting.status_code in {200, 202, 503}, fitting.text  # 503: it was taken, but no worker lives


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "body"),
        ([], "body"),
        ({"prompts": []}, "prompts"),
        ({"prompts": ["ok", ""]}, "prompts[1]"),
        ({"prompts": "text"}, "prompts"),
        ({"prompts": ["ok", 3]}, "prompts[1]"),
        ({"prompts": ["ok", None]}, "prompts[1]"),
        ({"prompts": ["a\x00b"]}, "prompts[0]"),
        ({"prompts": ["ok", "x" * CONTEXT]}, "prompts[1]"),
        ({"prompts": ["x" * 20_000]}, "prompts[0]"),
        ({"prompts": ["ok"] * 501}, "prompts"),
        ({"prompts": ["ok"], "requests": [{"prompt": "ok"}]}, "body"),
        ({"requests": []}, "requests"),
        ({"requests": [{"prompt": "ok"}, {}]}, "requests[1]"),
        ({"requests": [{"prompt": "ok", "messages": [{"role": "user", "content": "x"}]}]}, "requests[0]"),
        ({"requests": [{"messages": [{"role": "alien", "content": "x"}]}]}, "requests[0].messages"),
        ({"requests": [{"prompt": "ok", "max_token": 3}]}, "requests[0].max_token"),
        (
            {"requests": [{"prompt": "a", "custom_id": "x"}, {"prompt": "b", "custom_id": "x"}]},
            "requests[1].custom_id",
        ),
        ({"requests": [{"prompt": "a", "custom_id": "x" * 65}]}, "requests[0].custom_id"),
        ({"prompts": ["ok"], "max_tokens": -1}, "max_tokens"),
        ({"prompts": ["ok"], "max_tokens": 0}, "max_tokens"),
        ({"prompts": ["ok"], "max_tokens": "5"}, "max_tokens"),
        ({"prompts": ["ok"], "max_tokens": True}, "max_tokens"),
        ({"prompts": ["ok"], "max_tokens": 1.5}, "max_tokens"),
        ({"prompts": ["ok"], "temperature": -0.1}, "temperature"),
        ({"prompts": ["ok"], "temperature": 2.1}, "temperature"),
        ({"prompts": ["ok"], "top_p": 0}, "top_p"),
        ({"prompts": ["ok"], "top_k": -1}, "top_k"),
        ({"prompts": ["ok"], "min_p": 1.1}, "min_p"),
        ({"prompts": ["ok"], "seed": 2**63}, "seed"),
        ({"prompts": ["ok"], "unknown_field": 1}, "unknown_field"),
        ({"prompts": ["ok"], "completion_window": "soon"}, "completion_window"),
        ({"prompts": ["ok"], "completion_window": "31d"}, "completion_window"),
        ({"prompts": ["ok"], "priority": 101}, "priority"),
        ({"requests": [{"prompt": "a", "priority": -101}]}, "requests[0].priority"),
        ({"prompts": ["ok"], "metadata": {"a": 1}}, "metadata.a"),
        ({"prompts": ["ok"], "metadata": {"a": "\x00"}}, "metadata.a"),
        ({"prompts": ["ok"], "callback_url": "ftp://example.com"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "javascript:alert(1)"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "http://"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "http://a b/"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "http://user:secret@example.com/"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "http://[::1"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": "/relative"}, "callback_url"),
        ({"prompts": ["ok"], "callback_url": ""}, "callback_url"),
    ],
)
def test_bad_input_is_refused_by_name_and_leaves_nothing(
    client: TestClient, store: Store, body: object, param: str
) -> None:
    answer = client.post("/v1/batch/async", json=body)
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert error["message"]
    assert [count(store, table) for table in ("batches", "shards", "requests")] == [0, 0, 0]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"not json", b'{"prompts": ["\xff"]}', b'{"prompts": ["a"],}', b"[" * 100_000]
)
def test_what_is_not_json_is_refused(client: TestClient, store: Store, body: bytes) -> None:
    answer = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["param"] == "body"
    assert count(store) == 0


@pytest.mark.parametrize("body", ['{"prompts": ["\\ud800"]}', '{"prompts": ["a"], "temperature": NaN}'])
def test_json_that_python_reads_but_nobody_should_is_refused(
    client: TestClient, store: Store, body: str
) -> None:
    answer = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert count(store) == 0


def test_a_body_over_the_limit_is_refused(client: TestClient, store: Store) -> None:
    body = json.dumps({"prompts": ["x" * 1_100_000]}).encode()
    declared = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    chunked = client.post(
        "/v1/batch/async",
        content=iter([body[:600_000], body[600_000:]]),
        headers={"content-type": "application/json"},
    )
    for answer in (declared, chunked):
        assert answer.status_code == 413, answer.text
        assert answer.json()["error"]["param"] == "body"
    assert count(store) == 0


def test_one_key_makes_one_batch(client: TestClient, store: Store) -> None:
    body = {"prompts": ["ok"]}
    headers = {"Idempotency-Key": "k1"}
    first = client.post("/v1/batch/async", json=body, headers=headers).json()
    again = client.post("/v1/batch/async", json=body, headers=headers).json()
    assert again == first
    other = client.post("/v1/batch/async", json={"prompts": ["other"]}, headers=headers)
    assert other.status_code == 422
    assert other.json()["error"]["type"] == "idempotency_error"
    assert count(store) == 1


def test_one_key_makes_one_batch_when_retries_race(client: TestClient, store: Store) -> None:
    ids: list[str] = []

    def post() -> None:
        answer = client.post("/v1/batch/async", json={"prompts": ["ok"]}, headers={"Idempotency-Key": "race"})
        ids.append(answer.json()["batch_id"])

    threads = [threading.Thread(target=post) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 6
    assert len(set(ids)) == 1
    assert count(store) == 1


EVERY_OPTION = {
    "max_tokens": 9,
    "temperature": 0.3,
    "top_p": 0.8,
    "top_k": 7,
    "min_p": 0.1,
    "seed": -5,
    "stop": ["a", "b"],
    "stop_token_ids": [3, 4],
    "ignore_eos": True,
    "min_tokens": 2,
    "repetition_penalty": 1.2,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.6,
    "logit_bias": {"5": -1.5},
    "logprobs": 2,
    "prompt_logprobs": 1,
    "n": 2,
    "best_of": 3,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
}


def test_every_sampling_option_is_stored(client: TestClient, store: Store) -> None:
    answer = client.post("/v1/batch/async", json={"prompts": ["one"], **EVERY_OPTION})
    assert answer.status_code == 202, answer.text
    expected = EVERY_OPTION | {"logit_bias": [[5, -1.5]], "must_fit": True}
    del expected["response_format"]
    with store.transaction() as session:
        assert session.scalar(text("SELECT params FROM batches")) == expected | {
            "format": {"kind": "json_schema", "source": '{"type": "object"}'}
        }
        assert session.scalar(text("SELECT max_output_tokens FROM batches")) == 9 * 3


def test_a_request_may_leave_its_batchs_format(client: TestClient, store: Store) -> None:
    requests = [{"prompt": "a"}, {"prompt": "b", "response_format": {"type": "text"}}]
    answer = client.post("/v1/batch/async", json={"requests": requests, "guided_choice": ["x", "y"]})
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        shared = session.scalar(text("SELECT params FROM batches"))
        own = session.scalars(text("SELECT params FROM requests ORDER BY position")).all()
    assert shared == {"format": {"kind": "choice", "source": ["x", "y"]}}
    assert own == [None, {}]


def test_readings_are_requests_too(client: TestClient, store: Store) -> None:
    requests = [
        {"prompt": "a", "kind": "embedding", "pooling": "mean", "dimensions": 4},
        {"prompt": "b", "kind": "scoring", "continuations": [" c", " d"]},
    ]
    answer = client.post("/v1/batch/async", json={"requests": requests})
    assert answer.status_code == 202, answer.text
    with store.transaction() as session:
        rows = session.execute(text("SELECT kind, params FROM requests ORDER BY position")).all()
        assert session.scalar(text("SELECT max_output_tokens FROM batches")) == 0
    assert [kind for kind, _ in rows] == ["embedding", "scoring"]
    assert (rows[0][1]["pooling"], rows[0][1]["dimensions"]) == ("mean", 4)
    assert rows[1][1] == {"continuations": [" c", " d"]}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 0}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 300}, "min_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"256": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"guided_regex": "a[b"}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_json": {"type": "text"}}, "guided_json"),
        ({"guided_json": "{nope"}, "guided_json"),
        ({"guided_json": "3"}, "guided_json"),
        ({"guided_json": '{"const": "\\u0000"}'}, "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "text"}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_bad_option_is_named(
    client: TestClient, store: Store, options: dict[str, object], param: str
) -> None:
    for body, path in (
        ({"prompts": ["a"], **options}, param),
        ({"requests": [{"prompt": "a"}, {"prompt": "b", **options}]}, f"requests[1].{param}"),
    ):
        answer = client.post("/v1/batch/async", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, path), answer.text
    assert count(store) == 0


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"prompt": "a", "kind": "embedding", "temperature": 1}, "temperature"),
        ({"prompt": "a", "kind": "scoring"}, "continuations"),
        ({"prompt": "a", "pooling": "mean"}, "pooling"),
        ({"prompt": "a", "kind": "picture"}, "kind"),
    ],
)
def test_options_go_with_their_kind(
    client: TestClient, store: Store, request_: dict[str, object], param: str
) -> None:
    answer = client.post("/v1/batch/async", json={"requests": [request_]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, f"requests[0].{param}")
    assert count(store) == 0


@pytest.mark.parametrize(
    ("expected", "problem"),
    [
        ({"match": "like", "value": "x"}, "match: must be one of exact, regex, json, number, json_schema"),
        ({"match": "regex", "value": "["}, "value: regex: "),
        ({"match": "number", "value": "3"}, "value: must be a number"),
    ],
)
def test_a_malformed_rule_for_outputs_is_refused_by_name(
    client: TestClient, store: Store, expected: object, problem: str
) -> None:
    requests = [{"prompt": "one", "expected": "1"}, {"prompt": "two", "expected": expected}]
    answer = client.post("/v1/batch/async", json={"requests": requests})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "requests[1].expected"
    assert f"expected: {problem}" in answer.json()["error"]["message"]
    assert count(store) == 0
