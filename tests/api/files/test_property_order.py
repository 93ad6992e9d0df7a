"""The order of a schema's properties is part of what a client asks for: it is kept up to the grammar."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.files.reading import BatchReader
from tests.fixtures.batches import LEASE, held, result
from tests.fixtures.inputs import body, line
from worker.engine.requests.generation import GenerationRequest
from worker.runs.translation import to_engine
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress
from worker.values.grammar import Grammar
from worker.values.outcomes import Outcome

Send = Callable[[dict[str, Any]], None]
NAMES = ("reasoning", "answer", "ok", "b")


def schema(names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    properties = {name: {"type": "boolean"} for name in names}
    return {"type": "object", "properties": properties, "required": list(names)}


def response_format(names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(names)}}


def claims(store: Store) -> list[Claim]:
    with store.transaction() as session:
        ids = list(session.scalars(text("SELECT id FROM shards WHERE state = 'ready' ORDER BY id")))
    return [held(store, shard_id) for shard_id in ids]


def orders(claimed: list[Claim]) -> list[tuple[str, ...]]:
    """Return the properties of each grammar that the engine is given, in their order."""
    found = []
    for claim in claimed:
        for request in claim.requests:
            (engine_request,) = to_engine(request, claim.batch_id)
            assert isinstance(engine_request, GenerationRequest)
            wanted = engine_request.params.format
            assert wanted is not None
            (grammar,) = json.loads(Grammar.of(wanted.kind, wanted.source).source)["grammars"]
            found.append(tuple(grammar["json_schema"]["properties"]))
    return found


@pytest.fixture
def sent(client: TestClient, store: Store, create: Any, reader: BatchReader) -> Callable[..., list[Claim]]:
    def send(path: str, fields: dict[str, Any]) -> list[Claim]:
        if path == "file":
            create(line("a", body=body(**fields)))
            assert reader.turn()
        else:
            bodies: dict[str, dict[str, Any]] = {
                "batch": {"prompts": ["one"], **fields},
                "request": {"requests": [{"prompt": "one", **fields}]},
                "interactive": {"prompts": ["one"], "wait_seconds": 0.1, **fields},
            }
            route = "/v1/batch/sync" if path == "interactive" else "/v1/batch/async"
            answer = client.post(route, json=bodies[path])
            assert answer.status_code == 202, answer.text
        return claims(store)

    return send


@pytest.mark.parametrize("path", ["batch", "request", "interactive", "file"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": response_format()},
        {"guided_json": schema()},
        {"guided_json": json.dumps(schema())},
    ],
    ids=["response_format", "guided_json", "guided_json as text"],
)
def test_it_is_kept_on_every_way_to_the_engine(
    sent: Callable[..., list[Claim]], path: str, fields: dict[str, Any]
) -> None:
    assert orders(sent(path, fields)) == [NAMES]


def test_a_retry_keeps_it(client: TestClient, store: Store, sent: Callable[..., list[Claim]]) -> None:
    (claim,) = sent("request", {"response_format": response_format()})
    failed = [result(request.id, outcome=Outcome.FAILED) for request in claim.requests]
    with store.transaction() as session:
        shards.save(session, [Progress(claim, failed, running_tokens=0, is_last=True)], lease=LEASE)
    assert client.post(f"/v1/batch/{claim.batch_id}/retry").status_code == 202
    assert orders(claims(store)) == [NAMES]


def test_requests_whose_schemas_differ_in_it_are_different_requests(client: TestClient, store: Store) -> None:
    turned = NAMES[::-1]
    requests = [
        {"prompt": "one", "temperature": 0, "response_format": response_format(names)}
        for names in (NAMES, turned, NAMES)
    ]
    assert client.post("/v1/batch/async", json={"requests": requests}).status_code == 202
    claimed = claims(store)
    assert sorted(orders(claimed)) == sorted([NAMES, turned])  # the third is a duplicate of the first
    assert sorted(request.num_copies for claim in claimed for request in claim.requests) == [1, 2]


def test_a_schema_that_was_stored_as_an_object_still_runs(client: TestClient, store: Store) -> None:
    requests = [{"prompt": "one", "response_format": response_format()}]
    assert client.post("/v1/batch/async", json={"requests": requests}).status_code == 202
    old = {"format": {"kind": "json_schema", "source": schema()}}
    with store.transaction() as session:
        session.execute(text("UPDATE requests SET params = :old"), {"old": json.dumps(old)})
    ((found,),) = (orders(claims(store)),)
    assert set(found) == set(NAMES)
