from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import text
from standardwebhooks import Webhook

from api.main import create_app
from tests.fixtures.receiver import receiver
from tests.fixtures.webhooks import KEY, deliverer, delivery_ids, end_batch, make_due
from worker.contract.events import BATCH_EVENTS
from worker.settings import Settings
from worker.store.database.session import Store
from worker.webhooks.backoff import DELAYS

ENDPOINTS = "/v1/webhooks/endpoints"
EVENTS = "/v1/webhooks/events"
NOBODY = "http://127.0.0.1:1/hook"


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    keyed = config.model_copy(update={"secret_key": SecretStr(KEY)})
    with TestClient(create_app(keyed), raise_server_exceptions=False) as client:
        yield client


def register(client: TestClient, url: str = NOBODY, **fields: object) -> dict[str, Any]:
    answer = client.post(ENDPOINTS, json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def deliver_all(store: Store) -> None:
    for delivery_id in delivery_ids(store, "state = 'pending'"):
        deliverer(store).deliver(delivery_id)


def test_the_secret_is_shown_once_and_verifies(client: TestClient, store: Store) -> None:
    with receiver() as hook:
        made = register(client, hook.url)
        end_batch(store)
        deliver_all(store)
        headers, body = hook.calls[0]
    assert Webhook(made["secret"]).verify(body, headers)["type"] == "batch.completed"
    shown = client.get(f"{ENDPOINTS}/{made['id']}").json()
    assert shown == {key: value for key, value in made.items() if key != "secret"}
    assert made["secret"] not in client.get(ENDPOINTS).text
    assert shown["event_types"] == sorted(BATCH_EVENTS)
    assert (shown["enabled"], shown["disabled_reason"], shown["description"]) == (True, None, "")


def test_endpoints_are_listed_page_by_page(client: TestClient) -> None:
    made = [register(client)["id"] for _ in range(5)]
    first = client.get(ENDPOINTS, params={"limit": 3}).json()
    second = client.get(ENDPOINTS, params={"limit": 3, "after": made[2]}).json()
    assert [e["id"] for e in first["data"] + second["data"]] == made
    assert (first["has_more"], second["has_more"]) == (True, False)


def test_an_endpoint_is_changed_field_by_field(client: TestClient) -> None:
    made = register(client, description="before")
    path = f"{ENDPOINTS}/{made['id']}"
    changed = client.patch(path, json={"description": "after", "event_types": ["batch.failed"]}).json()
    assert (changed["description"], changed["event_types"]) == ("after", ["batch.failed"])
    assert (changed["url"], changed["enabled"]) == (NOBODY, True)
    disabled = client.patch(path, json={"enabled": False}).json()
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "by its owner")
    enabled = client.patch(path, json={"enabled": True, "url": NOBODY + "2"}).json()
    assert (enabled["enabled"], enabled["disabled_reason"], enabled["url"]) == (True, None, NOBODY + "2")


def test_what_was_pending_goes_to_the_new_address(client: TestClient, store: Store) -> None:
    made = register(client)
    end_batch(store)
    with receiver() as hook:
        client.patch(f"{ENDPOINTS}/{made['id']}", json={"url": hook.url})
        deliver_all(store)
        assert len(hook.calls) == 1


def test_a_deleted_endpoint_is_gone(client: TestClient, store: Store) -> None:
    path = f"{ENDPOINTS}/{register(client)['id']}"
    assert client.delete(path).status_code == 204
    assert client.delete(path).status_code == 404
    assert client.get(path).status_code == 404
    assert client.patch(path, json={"enabled": True}).status_code == 404
    for action in ("ping", "rotate", "replay"):
        assert client.post(f"{path}/{action}").status_code == 404
    end_batch(store)
    assert delivery_ids(store) == []


def test_a_rotated_secret_signs_beside_the_old_one(client: TestClient, store: Store) -> None:
    with receiver() as hook:
        made = register(client, hook.url)
        rotated = client.post(f"{ENDPOINTS}/{made['id']}/rotate", json={"overlap_seconds": 600}).json()
        end_batch(store)
        deliver_all(store)
        headers, body = hook.calls[0]
        for secret in (made["secret"], rotated["secret"]):
            Webhook(secret).verify(body, headers)
        assert rotated["secret"] != made["secret"]
        assert rotated["old_secret_expires_at"] is not None
        at_once = client.post(f"{ENDPOINTS}/{made['id']}/rotate", json={"overlap_seconds": 0}).json()
        assert at_once["old_secret_expires_at"] is None
        end_batch(store)
        deliver_all(store)
        headers, body = hook.calls[1]
    assert headers["webhook-signature"].count("v1,") == 1
    Webhook(at_once["secret"]).verify(body, headers)


def test_a_ping_arrives_and_its_attempt_is_in_the_log(client: TestClient, store: Store) -> None:
    with receiver((503, {})) as hook:
        made = register(client, hook.url)
        event = client.post(f"{ENDPOINTS}/{made['id']}/ping")
        assert event.status_code == 202
        event_id = event.json()["id"]
        deliver_all(store)
        make_due(store)
        deliver_all(store)
        headers, body = hook.calls[-1]
    assert Webhook(made["secret"]).verify(body, headers)["type"] == "webhook.ping"
    log = client.get(f"{EVENTS}/{event_id}/attempts").json()["data"]
    assert [(a["number"], a["endpoint_id"], a["status_code"]) for a in log] == [
        (1, made["id"], 503),
        (2, made["id"], 200),
    ]
    looked_at = client.get(f"{EVENTS}/{event_id}").json()
    assert (looked_at["batch_id"], looked_at["payload"]["data"]) == (None, {"id": made["id"]})
    assert looked_at["deliveries"][0]["state"] == "delivered"


def test_a_dead_letter_is_listed_and_replayed(client: TestClient, store: Store) -> None:
    with receiver(*[(500, {})] * (len(DELAYS) + 1)) as hook:
        made = register(client, hook.url)
        batch_id, other = end_batch(store), None
        for _ in range(len(DELAYS) + 1):
            make_due(store)
            deliver_all(store)
        other = end_batch(store)
        dead = client.get(EVENTS, params={"state": "failed"}).json()["data"]
        assert [event["batch_id"] for event in dead] == [batch_id]
        [delivery] = dead[0]["deliveries"]
        assert (delivery["attempts"], delivery["last_status_code"]) == (len(DELAYS) + 1, 500)
        replayed = client.post(f"{EVENTS}/{dead[0]['id']}/replay")
        assert replayed.status_code == 202
        assert replayed.json()["deliveries"][0]["state"] == "pending"
        make_due(store)
        deliver_all(store)
        assert {headers["webhook-id"] for headers, _ in hook.calls[:-1]} == {dead[0]["id"]}
    assert client.get(EVENTS, params={"state": "failed"}).json()["data"] == []
    found = client.get(EVENTS, params={"batch_id": other, "endpoint_id": made["id"]}).json()["data"]
    assert [event["batch_id"] for event in found] == [other]


def test_all_dead_letters_of_an_endpoint_are_replayed_at_once(client: TestClient, store: Store) -> None:
    path = f"{ENDPOINTS}/{register(client)['id']}"
    for _ in range(3):
        end_batch(store)
    client.patch(path, json={"enabled": False})
    assert len(client.get(EVENTS, params={"state": "failed"}).json()["data"]) == 3
    refused = client.post(f"{path}/replay")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "endpoint_disabled")
    client.patch(path, json={"enabled": True})
    assert client.post(f"{path}/replay").json() == {"replayed": 3}
    assert client.post(f"{path}/replay").json() == {"replayed": 0}


def test_a_replay_may_be_for_one_receiver(client: TestClient, store: Store) -> None:
    with receiver() as hook, receiver() as callback:
        made = register(client, hook.url)
        end_batch(store, callback_url=callback.url)
        deliver_all(store)
        [event] = client.get(EVENTS).json()["data"]
        path = f"{EVENTS}/{event['id']}/replay"
        assert client.post(path, json={"endpoint_id": made["id"]}).status_code == 202
        deliver_all(store)
        assert (len(hook.calls), len(callback.calls)) == (2, 1)
        assert client.post(path, json={"endpoint_id": "we_other"}).status_code == 404
        client.patch(f"{ENDPOINTS}/{made['id']}", json={"enabled": False})
        assert client.post(path, json={"endpoint_id": made["id"]}).status_code == 422
        assert client.post(path).status_code == 202
        deliver_all(store)
        assert (len(hook.calls), len(callback.calls)) == (2, 2)


def test_events_are_listed_newest_first_page_by_page(client: TestClient, store: Store) -> None:
    register(client)
    made = [end_batch(store) for _ in range(5)]
    first = client.get(EVENTS, params={"limit": 3}).json()
    second = client.get(EVENTS, params={"limit": 3, "after": first["data"][-1]["id"]}).json()
    assert [e["batch_id"] for e in first["data"] + second["data"]] == made[::-1]
    assert (first["has_more"], second["has_more"]) == (True, False)


def test_another_tenant_sees_nothing(client: TestClient, store: Store) -> None:
    made = register(client)
    end_batch(store)
    [event] = client.get(EVENTS).json()["data"]
    with store.transaction() as session:
        session.execute(text("UPDATE webhook_endpoints SET tenant_id = 'other'"))
        session.execute(text("UPDATE webhook_events SET tenant_id = 'other'"))
    assert client.get(ENDPOINTS).json()["data"] == client.get(EVENTS).json()["data"] == []
    assert client.get(f"{ENDPOINTS}/{made['id']}").status_code == 404
    for path in ("", "/attempts"):
        assert client.get(f"{EVENTS}/{event['id']}{path}").status_code == 404
    assert client.post(f"{EVENTS}/{event['id']}/replay").status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "url"),
        ({"url": "http://93.184.216.34/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://0x7f.1:6379@example.com/"}, "url"),
        ({"url": "https://" + "a" * 3000}, "url"),
        ({"url": NOBODY, "event_types": []}, "event_types"),
        ({"url": NOBODY, "event_types": ["batch.exploded"]}, "event_types"),
        ({"url": NOBODY, "description": "x" * 501}, "description"),
        ({"url": NOBODY, "description": "\x00"}, "description"),
        ({"url": NOBODY, "enabled": "yes"}, "enabled"),
        ({"url": NOBODY, "secret": "whsec_mine"}, "secret"),
    ],
)
def test_a_bad_field_is_named(client: TestClient, body: dict[str, object], param: str) -> None:
    answer = client.post(ENDPOINTS, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert client.get(ENDPOINTS).json()["data"] == []


def test_a_bad_address_is_refused_in_a_change_too(client: TestClient) -> None:
    answer = client.patch(f"{ENDPOINTS}/{register(client)['id']}", json={"url": "https://10.0.0.1/"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "url")


def test_there_is_a_most_to_endpoints(client: TestClient, store: Store) -> None:
    register(client)
    with store.transaction() as session:
        session.execute(
            text(
                "INSERT INTO webhook_endpoints (id, url, event_types)"
                " SELECT 'we_' || n, 'https://example.com/', '[]' FROM generate_series(1, 99) AS n"
            )
        )
    answer = client.post(ENDPOINTS, json={"url": NOBODY})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "too_many_endpoints")


def test_without_a_key_endpoints_say_what_to_set(store: Store, config: Settings) -> None:  # noqa: ARG001
    keyless = config.model_copy(update={"secret_key": None})
    with TestClient(create_app(keyless), raise_server_exceptions=False) as client:
        answer = client.post(ENDPOINTS, json={"url": NOBODY})
        assert answer.status_code == 501
        assert "HEADRACE_SECRET_KEY" in answer.json()["error"]["message"]
        assert client.get(ENDPOINTS).json()["data"] == []
        assert client.get(EVENTS).json()["data"] == []


@pytest.mark.parametrize("value", ["short", "a" * 43, "{good},short", ""])
def test_a_key_that_is_none_is_refused_at_the_start(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET_KEY", value.format(good=KEY))
    if value:
        with pytest.raises(ValueError, match=r"worker\.webhooks\.sealing"):
            Settings()
    else:
        assert Settings().secret_keys == []


def test_several_keys_and_secrets_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SECRET_KEY", f"{KEY}, {KEY}")
    monkeypatch.setenv("HEADRACE_WEBHOOK_SECRET", "whsec_YQ==,whsec_Yg==")
    monkeypatch.setenv("HEADRACE_WEBHOOK_PORTS", "443, 9000")
    read = Settings()
    assert read.secret_keys == [KEY, KEY]
    assert read.webhook_secrets == ["whsec_YQ==", "whsec_Yg=="]
    assert read.webhook_ports == (443, 9000)
    assert KEY not in repr(read)
