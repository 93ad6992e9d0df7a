"""One event, many receivers: endpoints and the batch's own callback, each with its own delivery."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import text
from standardwebhooks import Webhook, WebhookVerificationError

from tests.fixtures.receiver import receiver
from tests.fixtures.webhooks import KEY, SECRET, deliverer, delivery_ids, end_batch, endpoint, make_due
from worker.contract.access import DEFAULT_TENANT
from worker.contract.states import EventState
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.webhooks import deliveries, delivery_log, endpoints, webhooks
from worker.store.webhooks.delivery_log import DeliveryView, EventFilter
from worker.webhooks import reseal
from worker.webhooks.sealing import Sealer, SealError, new_key
from worker.webhooks.signing import new_secret


def deliver_all(store: Store, **options: object) -> None:
    for delivery_id in delivery_ids(store, "state = 'pending'"):
        deliverer(store, **options).deliver(delivery_id)


def standing(store: Store, batch_id: str) -> dict[str | None, DeliveryView]:
    with store.transaction() as session:
        events = delivery_log.page(
            session, DEFAULT_TENANT, EventFilter(batch_id=batch_id), after=None, limit=10
        )
    return {delivery.endpoint_id: delivery for event in events for delivery in event.deliveries}


def test_one_event_reaches_every_endpoint_and_the_callback_each_under_its_own_secret(store: Store) -> None:
    own = new_secret()
    with receiver() as first, receiver() as second, receiver() as callback:
        endpoint(store, first.url, secret=own)
        endpoint(store, second.url)
        end_batch(store, callback_url=callback.url)
        deliver_all(store)
        calls = [hook.calls for hook in (first, second, callback)]
    assert [len(received) for received in calls] == [1, 1, 1]
    (headers, body), *others = [received[0] for received in calls]
    assert {other["webhook-id"] for other, _ in others} == {headers["webhook-id"]}
    assert {other for _, other in others} == {body}
    assert Webhook(own).verify(body, headers)["id"] == headers["webhook-id"]
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers)


def test_only_what_is_wanted_is_sent(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/", event_types=["batch.failed"])
    endpoint(store, "http://127.0.0.1:1/", is_enabled=False)
    end_batch(store)
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM webhook_events")) == 0
    wanted = endpoint(store, "http://127.0.0.1:1/", event_types=["batch.completed"])
    assert set(standing(store, end_batch(store))) == {wanted}


def test_another_tenants_endpoint_hears_nothing(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/")
    with store.transaction() as session:
        session.execute(text("UPDATE webhook_endpoints SET tenant_id = 'other'"))
    end_batch(store)
    assert delivery_ids(store) == []


def test_410_disables_the_endpoint_and_buries_what_waits_for_it(store: Store) -> None:
    with receiver((410, {})) as hook:
        endpoint_id = endpoint(store, hook.url)
        first, second = end_batch(store), end_batch(store)
        deliverer(store).deliver(delivery_ids(store)[0])
        deliver_all(store)
        assert len(hook.calls) == 1
        with store.transaction() as session:
            view = endpoints.get(session, DEFAULT_TENANT, endpoint_id)
        assert view is not None
        assert (view.is_enabled, view.disabled_reason) == (False, "it answered 410 Gone")
        for batch_id in (first, second):
            assert standing(store, batch_id)[endpoint_id].state is EventState.FAILED
        assert end_batch(store)
        assert len(delivery_ids(store)) == 2, "an event for an endpoint that is disabled"
        # Dead letters go out again once the endpoint is enabled.
        with store.transaction() as session:
            endpoints.change(session, DEFAULT_TENANT, endpoint_id, {"is_enabled": True})
            assert deliveries.replay(session, endpoint_id=endpoint_id, states=[EventState.FAILED]) == 2
        deliver_all(store)
        assert len(hook.calls) == 3
    assert {standing(store, b)[endpoint_id].state for b in (first, second)} == {EventState.DELIVERED}


def test_410_of_a_callback_disables_nobody_else(store: Store) -> None:
    with receiver() as other, receiver((410, {})) as callback:
        endpoint_id = endpoint(store, other.url)
        batch_id = end_batch(store, callback_url=callback.url)
        deliver_all(store)
    found = standing(store, batch_id)
    assert found[None].state is EventState.FAILED
    assert found[endpoint_id].state is EventState.DELIVERED


def test_a_pending_delivery_to_an_endpoint_that_was_disabled_meanwhile_is_not_sent(store: Store) -> None:
    with receiver() as hook:
        endpoint_id = endpoint(store, hook.url)
        batch_id = end_batch(store)
        with store.transaction() as session:
            session.execute(text("UPDATE webhook_endpoints SET is_enabled = false"))
        deliver_all(store)
        assert hook.calls == []
    assert standing(store, batch_id)[endpoint_id].state is EventState.FAILED


def test_both_secrets_sign_until_the_overlap_ends(store: Store) -> None:
    new = new_secret()
    with receiver() as hook:
        endpoint_id = endpoint(store, hook.url)
        with store.transaction() as session:
            endpoints.rotate(
                session,
                DEFAULT_TENANT,
                endpoint_id,
                sealed_secret=Sealer([KEY]).seal(new),
                overlap=timedelta(hours=1),
            )
        end_batch(store)
        deliver_all(store)
        headers, body = hook.calls[0]
        for secret in (SECRET, new):
            Webhook(secret).verify(body, headers)
        with store.transaction() as session:
            session.execute(text("UPDATE webhook_endpoints SET old_secret_expires_at = now()"))
        end_batch(store)
        deliver_all(store)
        headers, body = hook.calls[1]
        Webhook(new).verify(body, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(body, headers)


def test_secrets_lie_encrypted_and_keys_rotate(store: Store) -> None:
    with receiver() as hook:
        endpoint(store, hook.url)
        with store.transaction() as session:
            row = str(session.execute(text("SELECT * FROM webhook_endpoints")).one())
        assert SECRET.removeprefix("whsec_") not in row
        assert "whsec_" not in row
        end_batch(store)
        # A key that is not the one: the attempt is recorded, nothing is sent and nothing is lost.
        deliver_all(store, sealer=Sealer([new_key()]))
        assert hook.calls == []
        assert delivery_ids(store, "state = 'pending'")
        make_due(store)
        deliver_all(store, sealer=Sealer([new_key(), KEY]))
        assert len(hook.calls) == 1
    with store.transaction() as session:
        event_id = session.scalars(text("SELECT id FROM webhook_events")).one()
        log = delivery_log.attempts(session, event_id)
    assert "HEADRACE_SECRET_KEY" in (log[0].error or "")
    assert [attempt.status_code for attempt in log] == [None, 200]


def test_what_one_key_seals_another_does_not_open() -> None:
    old, new = new_key(), new_key()
    sealed = Sealer([old]).seal("whsec_a")
    with pytest.raises(SealError, match="HEADRACE_SECRET_KEY"):
        Sealer([new]).open(sealed)
    moved = Sealer([new, old]).reseal(sealed)
    assert Sealer([new]).open(moved) == "whsec_a"
    with pytest.raises(SealError, match="HEADRACE_SECRET_KEY"):
        Sealer([]).seal("whsec_a")
    with pytest.raises(SealError):
        Sealer([old]).open(sealed[:-2] + ("AA" if sealed[-2:] != "AA" else "BB"))


def test_resealing_leaves_only_the_newest_key_in_use(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = new_key()
    endpoint(store, "http://127.0.0.1:1/")
    rotated = endpoint(store, "http://127.0.0.1:1/")
    with store.transaction() as session:
        endpoints.rotate(
            session,
            DEFAULT_TENANT,
            rotated,
            sealed_secret=Sealer([KEY]).seal(new_secret()),
            overlap=timedelta(hours=1),
        )
    for keys, status in ((newest, 1), (f"{newest},{KEY}", 0), (newest, 0)):
        monkeypatch.setenv("HEADRACE_SECRET_KEY", keys)
        settings.cache_clear()
        assert reseal.main() == status
    settings.cache_clear()
    assert "2 endpoints" in capsys.readouterr().out
    end_batch(store)
    for delivery_id in delivery_ids(store):
        with store.transaction() as session:
            held = deliveries.claim(session, delivery_id, lease=timedelta(0), most_at_once=2)
        assert held is not None
        for sealed in held.sealed_secrets:
            assert Sealer([newest]).open(sealed).startswith("whsec_")


def test_no_secret_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with receiver((500, {})) as hook:
        endpoint(store, hook.url)
        end_batch(store, callback_url=hook.url)
        deliver_all(store)
    said = caplog.text + "".join(str(vars(record)) for record in caplog.records)  # with the fields
    assert "delivery attempted" in said
    for secret in (SECRET, SECRET.removeprefix("whsec_"), KEY, "v1,"):
        assert secret not in said


def test_a_replay_sends_the_same_event_again_with_the_schedule_anew(store: Store) -> None:
    with receiver() as hook:
        end_batch(store, callback_url=hook.url)
        deliver_all(store)
        with store.transaction() as session:
            event_id = session.scalars(text("SELECT id FROM webhook_events")).one()
            assert deliveries.replay(session, event_id=event_id) == 1
        deliver_all(store)
        (first, body), (second, same) = hook.calls
    assert (first["webhook-id"], body) == (second["webhook-id"], same)
    with store.transaction() as session:
        assert [attempt.number for attempt in delivery_log.attempts(session, event_id)] == [1, 2]


def test_attempts_at_all_receivers_are_one_log(store: Store) -> None:
    with receiver((500, {})) as hook:
        endpoint_id = endpoint(store, hook.url)
        end_batch(store, callback_url="http://127.0.0.1:1/")
        deliver_all(store)
        make_due(store)
        deliver_all(store)
    with store.transaction() as session:
        event_id = session.scalars(text("SELECT id FROM webhook_events")).one()
        log = delivery_log.attempts(session, event_id)
    assert [attempt.number for attempt in log] == [1, 2, 3, 4]
    assert [a.status_code for a in log if a.endpoint_id == endpoint_id] == [500, 200]
    assert [a.status_code for a in log if a.endpoint_id is None] == [None, None]


def test_a_deleted_endpoint_keeps_its_log_and_loses_its_secret(store: Store) -> None:
    with receiver() as hook:
        endpoint_id = endpoint(store, hook.url)
        batch_id = end_batch(store)
        deliver_all(store)
    with store.transaction() as session:
        assert endpoints.forget(session, DEFAULT_TENANT, endpoint_id)
        assert not endpoints.forget(session, DEFAULT_TENANT, endpoint_id)
        assert endpoints.get(session, DEFAULT_TENANT, endpoint_id) is None
        assert session.scalars(text("SELECT sealed_secret FROM webhook_endpoints")).all() == [None]
    assert standing(store, batch_id)[endpoint_id].state is EventState.DELIVERED


def test_a_ping_goes_to_its_endpoint_alone(store: Store) -> None:
    with receiver() as hook, receiver() as other:
        endpoint_id = endpoint(store, hook.url)
        endpoint(store, other.url)
        with store.transaction() as session:
            event_id = webhooks.ping(session, DEFAULT_TENANT, endpoint_id)
        deliver_all(store)
        assert other.calls == []
        event = json.loads(hook.calls[0][1])
    assert (event["id"], event["type"], event["data"]) == (event_id, "webhook.ping", {"id": endpoint_id})
