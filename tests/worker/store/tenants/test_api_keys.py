from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.access import make_key
from worker.contract.access import Scope
from worker.store.database.session import Store
from worker.store.tenants import api_keys
from worker.store.tenants.api_keys import ApiKey


def recognize(store: Store, key: str) -> ApiKey | None:
    with store.transaction() as session:
        return api_keys.recognize(session, key)


def test_a_key_is_recognized_and_stored_only_as_a_hash(store: Store) -> None:
    key = make_key(store, "acme", scopes=(Scope.READ,))
    found = recognize(store, key)
    assert found is not None
    assert (found.tenant_id, found.scopes) == ("acme", {Scope.READ})
    assert key.startswith(found.prefix + "_")
    with store.transaction() as session:
        kept = str(session.execute(text("SELECT * FROM api_keys")).one())
    assert key.removeprefix(found.prefix + "_") not in kept


@pytest.mark.parametrize("spoil", ["", "x", "{0}x", "{1}", "{1}_", "{1}_" + "A" * 43, "{0}" + "x" * 10_000])
def test_what_is_not_the_whole_key_opens_nothing(store: Store, spoil: str) -> None:
    key = make_key(store)
    assert recognize(store, spoil.format(key, api_keys.prefix_of(key))) is None
    assert recognize(store, key) is not None


def test_a_key_expires_and_is_revoked(store: Store) -> None:
    assert recognize(store, make_key(store, expires_in=timedelta(hours=1))) is not None
    assert recognize(store, make_key(store, expires_in=timedelta(0))) is None
    key = make_key(store)
    with store.transaction() as session:
        assert api_keys.revoke(session, api_keys.prefix_of(key)) is True
        assert api_keys.revoke(session, api_keys.prefix_of(key)) is False
    assert recognize(store, key) is None


def test_a_rotated_key_goes_on_for_a_while(store: Store) -> None:
    key = make_key(store, expires_in=timedelta(hours=1))
    with store.transaction() as session:
        fresh = api_keys.rotate(session, api_keys.prefix_of(key), old_works_for=timedelta(days=1))
    assert fresh is not None
    old, new = recognize(store, key), recognize(store, fresh)
    assert old is not None
    assert new is not None
    assert (new.tenant_id, new.name, new.scopes) == (old.tenant_id, old.name, old.scopes)
    assert old.expires_at is not None
    assert old.expires_at - old.created_at < timedelta(hours=2), "rotation must not lengthen a life"
    with store.transaction() as session:
        fresh = api_keys.rotate(session, new.prefix, old_works_for=timedelta(0))
    assert recognize(store, key) is not None
    assert (fresh and recognize(store, fresh)) is not None
    assert recognize(store, new.prefix) is None
    with store.transaction() as session:
        assert api_keys.rotate(session, new.prefix, old_works_for=timedelta(0)) is None


def test_use_is_noted_to_the_minute(store: Store) -> None:
    key = make_key(store)

    def last_used() -> object:
        with store.transaction() as session:
            found = api_keys.find(session, api_keys.prefix_of(key))
        return found and found.last_used_at

    assert last_used() is None
    recognize(store, key)
    first = last_used()
    assert first is not None
    recognize(store, key)
    assert last_used() == first
    with store.transaction() as session:
        session.execute(text("UPDATE api_keys SET last_used_at = last_used_at - interval '2 minutes'"))
    recognize(store, key)
    assert last_used() >= first  # type: ignore[operator]
