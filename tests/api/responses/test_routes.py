"""Responses over HTTP: what is stored, told and refused. The `openai` client's models judge the bodies."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import openai.types.responses as theirs
import pytest
from fastapi.testclient import TestClient
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter
from sqlalchemy import text

from api.main import create_app
from tests.api.generate.test_waiting import alive, answer, working  # noqa: F401 - a fixture
from tests.api.responses.conftest import Ask, prompts
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import LEASE, held, result
from worker.contract.feed import Saved
from worker.dispatcher.dispatcher import Dispatcher
from worker.queue.broker import Broker
from worker.queue.feed import FeedWriter
from worker.settings import Settings, settings
from worker.store.batches import responses
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress
from worker.store.watching import retention
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import RequestError

EVENTS: TypeAdapter[Any] = TypeAdapter(theirs.ResponseStreamEvent)
WRITTEN = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def run(store: Store, output: str | None, **changes: Any) -> None:
    """Give the one request that waits its result, as a worker would."""
    with store.transaction() as session:
        shard_id = session.scalars(text("SELECT max(id) FROM shards WHERE state = 'ready'")).one()
    claimed = held(store, shard_id)
    found = replace(result(claimed.requests[0].id), output=output, **changes)
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, [found], running_tokens=0, is_last=True)], lease=LEASE)


def count(store: Store, table: str) -> int:
    with store.transaction() as session:
        return session.scalar(text(f"SELECT count(*) FROM {table}")) or 0


def events(found: Any) -> list[dict[str, Any]]:
    told = []
    for block in found.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENTS.validate_python(event)
        told.append(event)
    assert [event["sequence_number"] for event in told] == list(
        range(told[0]["sequence_number"], told[0]["sequence_number"] + len(told))
    )
    return told


@pytest.mark.usefixtures("alive")
def test_a_response_repeats_what_was_asked_and_is_kept(client: TestClient, store: Store, ask: Ask) -> None:
    with working(store, lambda claimed: answer(store, claimed, "hi there")):
        found = ask(
            instructions="be brief",
            temperature=0.5,
            max_output_tokens=9,
            metadata={"a": "b"},
            user="somebody",
            text={"format": {"type": "json_object"}},
        )
    assert found.status_code == 200, found.text
    body = found.json()
    said = Response.model_validate(body)
    assert (said.status, said.output_text, said.object) == ("completed", "hi there", "response")
    assert (said.instructions, said.temperature, said.max_output_tokens) == ("be brief", 0.5, 9)
    assert (said.metadata, said.user, said.store) == ({"a": "b"}, "somebody", True)
    assert body["text"] == {"format": {"type": "json_object"}}
    assert said.usage is not None
    assert (said.usage.input_tokens, said.usage.output_tokens, said.usage.total_tokens) == (3, 7, 10)
    assert said.usage.input_tokens_details.cached_tokens == 1
    assert client.get(f"/v1/responses/{said.id}").json() == body
    assert prompts(store) == ["<system>be brief<user>hello<assistant>"]


@pytest.mark.usefixtures("alive")
def test_a_stream_has_every_event_in_order(client: TestClient, store: Store, ask: Ask) -> None:
    feed = FeedWriter(settings().redis_url)

    def work(claimed: Claim) -> None:
        for offset, piece in ((0, "the "), (4, "whole ")):
            feed.tell(claimed.batch_id, Delta(0, 0, offset, piece, 1))
        answer(store, claimed)
        feed.tell(claimed.batch_id, Saved())

    with working(store, work):
        told = events(ask(stream=True))
    feed.close()
    assert [event["type"] for event in told] == [*WRITTEN[:4], *[WRITTEN[4]] * 3, *WRITTEN[5:]]
    assert "".join(event["delta"] for event in told if "delta" in event) == "the whole text"
    assert told[0]["response"]["status"] == "in_progress"
    assert (told[2]["item"]["content"], told[3]["part"]["text"]) == ([], "")
    assert told[-4]["text"] == told[-3]["part"]["text"] == "the whole text"
    whole = told[-1]["response"]
    assert whole["output"] == [told[-2]["item"]]
    assert client.get(f"/v1/responses/{whole['id']}").json() == whole


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_stored_leaves_nothing(client: TestClient, store: Store, ask: Ask, stream: bool) -> None:
    with working(store, lambda claimed: answer(store, claimed)):
        found = ask(store=False, stream=stream)
    whole = events(found)[-1]["response"] if stream else found.json()
    assert (whole["store"], whole["status"]) == (False, "completed")
    assert client.get(f"/v1/responses/{whole['id']}").status_code == 404
    assert count(store, "responses") == 0
    with store.transaction() as session:
        retention.drop_deleted(session, limit=10)
        retention.drop_deleted(session, limit=10)
    assert [count(store, table) for table in ("batches", "requests", "results")] == [0, 0, 0]


def test_what_an_api_that_died_did_not_delete_the_dispatcher_deletes(store: Store, ask: Ask) -> None:
    body = ask(background=True).json()
    batch_id = f"batch_{body['id'].removeprefix('resp_')}"
    run(store, "hi")
    dispatcher = Dispatcher(store, Broker(settings().redis_url), max_attempts=2, publish=lambda _: None)
    with store.transaction() as session:
        responses.hide(session, batch_id)
    dispatcher.sweep()
    assert count(store, "responses") == 1, "its client may still read it"
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET finished_at = finished_at - interval '2 minutes'"))
    dispatcher.sweep()
    dispatcher.sweep()
    assert [count(store, table) for table in ("responses", "batches", "results")] == [0, 0, 0]


def test_a_background_response_goes_from_queued_to_completed(
    client: TestClient, store: Store, ask: Ask
) -> None:
    found = ask(background=True, metadata={"a": "b"})
    assert found.status_code == 200, found.text
    queued = Response.model_validate(found.json())
    assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
    claimed = held(store, 1)
    assert client.get(f"/v1/responses/{queued.id}").json()["status"] == "in_progress"
    found_result = result(claimed.requests[0].id, output="done")
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, [found_result], 0, is_last=True)], lease=LEASE)
    done = Response.model_validate(client.get(f"/v1/responses/{queued.id}").json())
    assert (done.status, done.output_text) == ("completed", "done")
    (batch,) = client.get("/v1/batch").json()["data"]
    assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})


def test_a_background_response_can_be_cancelled_and_no_other(
    client: TestClient, store: Store, ask: Ask
) -> None:
    body = ask(background=True).json()
    url = f"/v1/responses/{body['id']}"
    assert client.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert client.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert client.get(url).json()["output"] == []
    other = ask(background=True).json()
    with store.transaction() as session:
        session.execute(text("UPDATE responses SET request = '{}'"))
    refused = client.post(f"/v1/responses/{other['id']}/cancel")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_id")


def test_a_cut_off_response_is_incomplete_and_a_failed_one_says_why(
    client: TestClient, store: Store, ask: Ask
) -> None:
    cut = ask(background=True).json()["id"]
    run(store, "half", finish_reason=FinishReason.LENGTH)
    found = Response.model_validate(client.get(f"/v1/responses/{cut}").json())
    assert (found.status, found.output_text) == ("incomplete", "half")
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert found.output[0].status == "incomplete"  # type: ignore[union-attr]
    failed = ask(background=True).json()["id"]
    why = RequestError("generation_failed", "a bad grammar")
    run(store, None, outcome=Outcome.FAILED, finish_reason=None, error=why)
    found = Response.model_validate(client.get(f"/v1/responses/{failed}").json())
    assert (found.status, found.output) == ("failed", [])
    assert found.error is not None
    assert (found.error.code, "a bad grammar" in found.error.message) == ("invalid_prompt", True)


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_while_the_client_waits(store: Store, ask: Ask, stream: bool) -> None:
    with working(store, lambda claimed: answer(store, claimed, error="a bad grammar")):
        found = ask(stream=stream)
    if stream:
        told = events(found)
        assert [event["type"] for event in told] == [*WRITTEN[:2], "response.failed"]
        assert "a bad grammar" in told[-1]["response"]["error"]["message"]
    else:
        assert (found.status_code, found.json()["error"]["code"]) == (400, "generation_failed")


def test_a_background_stream_can_be_read_again_from_any_event(
    client: TestClient, store: Store, ask: Ask
) -> None:
    body = ask(background=True).json()
    run(store, "hi")
    url = f"/v1/responses/{body['id']}?stream=true"
    told = events(client.get(url))
    assert [event["type"] for event in told] == WRITTEN
    assert told[-1]["response"] == client.get(f"/v1/responses/{body['id']}").json()
    assert events(client.get(f"{url}&starting_after=4")) == told[5:]
    after_all = client.get(f"{url}&starting_after={len(told) - 1}")
    assert (after_all.status_code, after_all.text) == (200, ""), "who has read everything gets nothing more"


@pytest.mark.usefixtures("alive")
def test_flex_waits_its_turn_among_batches(store: Store, config: Settings) -> None:
    body = {"model": config.model.name, "input": "hi", "service_tier": "flex"}
    with TestClient(create_app(config.model_copy(update={"wait_seconds": 0.2}))) as client:
        assert client.post("/v1/responses", json=body).json()["error"]["code"] == "wait_limit"
    with store.transaction() as session:
        assert session.execute(text("SELECT lane, status FROM batches")).all() == [("batch", "cancelled")]


def test_a_conversation_goes_on_with_everything_before(client: TestClient, store: Store, ask: Ask) -> None:
    first = ask(background=True, input="1", instructions="be brief").json()["id"]
    too_early = ask(previous_response_id=first, input="2")
    assert (too_early.status_code, too_early.json()["error"]["param"]) == (400, "previous_response_id")
    run(store, "2")
    second = ask(background=True, previous_response_id=first, input=[{"role": "user", "content": "3"}])
    run(store, "4")
    third = ask(background=True, previous_response_id=second.json()["id"], input="5")
    assert third.json()["previous_response_id"] == second.json()["id"]
    assert prompts(store)[-1] == "<user>1<assistant>2<user>3<assistant>4<user>5<assistant>"
    assert client.delete(f"/v1/responses/{first}").json()["deleted"]
    assert ask(previous_response_id=first).json()["error"]["code"] == "previous_response_not_found"
    url = f"/v1/responses/{third.json()['id']}/input_items"
    page = client.get(url, params={"limit": 2}).json()
    ResponseItemList.model_validate(page)
    rest = client.get(url, params={"after": page["last_id"]}).json()
    texts = [item["content"][0]["text"] for item in page["data"] + rest["data"]]
    assert (texts, page["has_more"], rest["has_more"]) == (["5", "4", "3", "2", "1"], True, False)
    assert client.get(url, params={"order": "asc"}).json()["data"] == (page["data"] + rest["data"])[::-1]
    assert client.get(url, params={"after": "none"}).status_code == 404


def test_deleting_really_deletes(client: TestClient, store: Store, ask: Ask) -> None:
    ended, live = (ask(background=True).json()["id"] for _ in "ab")
    claimed = held(store, 2)
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET state = 'ready' WHERE id = 1"))
    first = held(store, 1)
    with store.transaction() as session:
        shards.save(session, [Progress(first, [result(first.requests[0].id)], 0, is_last=True)], lease=LEASE)
    for one in (ended, live):
        found = client.delete(f"/v1/responses/{one}")
        assert found.json() == {"id": one, "object": "response", "deleted": True}
        assert client.get(f"/v1/responses/{one}").status_code == 404
        assert client.delete(f"/v1/responses/{one}").status_code == 404
    with store.transaction() as session:
        shards.release(session, claimed)
        session.execute(text("UPDATE batches SET finished_at = now() - interval '2 minutes'"))
    dispatcher = Dispatcher(store, Broker(settings().redis_url), max_attempts=2, publish=lambda _: None)
    for _ in range(4):
        dispatcher.sweep()
    assert [count(store, table) for table in ("responses", "batches", "requests")] == [0, 0, 0]


def test_retention_takes_the_conversation_with_the_results(
    client: TestClient, store: Store, ask: Ask
) -> None:
    body = ask(background=True, input="something to forget").json()
    run(store, "hi")
    with store.transaction() as session:
        before = session.scalar(text("SELECT stored_bytes FROM batches")) or 0
        assert before > len("something to forget") * 2, "the conversation counts beside the prompt"
        session.execute(text("UPDATE batches SET finished_at = finished_at - interval '40 days'"))
    with store.transaction() as session:
        retention.drop_old_results(session, kept_for=timedelta(days=30), limit=10)
    assert client.get(f"/v1/responses/{body['id']}").status_code == 404
    assert count(store, "responses") == 0


def test_an_idempotency_key_makes_one_background_response(client: TestClient, config: Settings) -> None:
    body = {"model": config.model.name, "input": "hi", "background": True}
    key = {"Idempotency-Key": "again"}
    first, second = (client.post("/v1/responses", json=body, headers=key).json() for _ in "ab")
    assert first == second
    other = client.post("/v1/responses", json=body | {"input": "ho"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")


def test_tenants_do_not_see_each_others(store: Store, config: Settings) -> None:
    keyed = config.model_copy(update={"auth": "keys"})
    with TestClient(create_app(keyed)) as client:
        ours, others = (bearer(make_key(store, tenant)) for tenant in ("ours", "others"))
        body = {"model": config.model.name, "input": "hi", "background": True}
        found = client.post("/v1/responses", json=body, headers=ours).json()["id"]
        run(store, "hi")
        url = f"/v1/responses/{found}"
        assert client.get(url, headers=ours).json()["status"] == "completed"
        for method, path in (
            ("GET", ""),
            ("GET", "/input_items"),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "?stream=true"),
        ):
            assert client.request(method, url + path, headers=others).status_code == 404
        stolen = client.post("/v1/responses", json=body | {"previous_response_id": found}, headers=others)
        assert stolen.json()["error"]["code"] == "previous_response_not_found"
