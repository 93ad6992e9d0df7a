"""Leases are kept by who lives, also through a commit of which nobody knows whether it was done."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.fixtures.batches import claim, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, keeper
from worker.contract.states import Lane
from worker.engine.engine_thread import EngineThread
from worker.runs import lease_keeper
from worker.runs.lease_keeper import LeaseKeeper
from worker.store.database.session import Store

SHORT = timedelta(seconds=1)


class CutOff(Store):
    """Its first commit is cut off, done or not; later ones are as usual."""

    is_done: bool
    is_cut = False

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        if self.is_cut:
            with super().transaction() as session:
                yield session
            return
        self.is_cut = True
        lost = OperationalError("COMMIT", None, Exception("the connection was reset"))
        with super().transaction() as session:
            yield session
            if not self.is_done:
                raise lost
        raise lost


def cut_off(store: Store, *, is_done: bool) -> CutOff:
    made = cast("CutOff", store.of_tenant("default"))
    made.__class__ = CutOff
    made.tenant_id, made.is_done = None, is_done
    return made


def seconds_left(store: Store) -> float:
    with store.transaction() as session:
        return float(
            session.scalar(
                text("SELECT extract(epoch FROM lease_expires_at - now()) FROM shards WHERE id = 1")
            )
        )


def test_a_claim_whose_commit_was_done_and_cut_off_is_ours(store: Store) -> None:
    submit(store)
    with keeper(cut_off(store, is_done=True), FakeEngine()).hold(1) as held:
        assert held is not None
        assert len(held.requests) == 2
    assert claim(store, 1) is None


def test_a_claim_whose_commit_was_not_done_is_nobodys(store: Store) -> None:
    submit(store)
    with keeper(cut_off(store, is_done=False), FakeEngine()).hold(1) as held:
        assert held is None
    assert claim(store, 1) is not None


def test_a_claim_that_another_made_meanwhile_is_not_ours(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fence is the same number, as the one that was cut off was not done."""
    submit(store)
    lost = keeper(cut_off(store, is_done=False), FakeEngine())
    is_ours = lost._is_ours

    def after_another(held: object) -> bool:
        assert claim(store, 1, worker=lost.worker) is not None
        return is_ours(held)  # type: ignore[arg-type]

    monkeypatch.setattr(lost, "_is_ours", after_another)
    with lost.hold(1) as held:
        assert held is None


def test_what_is_held_stays_held_without_a_save(store: Store) -> None:
    submit(store)
    engine = FakeEngine()
    kept = keeper(store, engine, SHORT)
    kept.start()
    with kept.hold(1) as held:
        assert held is not None
        claimed_until = held.leased_until
        is_renewed = text(
            "SELECT lease_expires_at > :claimed_until + interval '2 seconds' FROM shards WHERE id = 1"
        )

        def renewed() -> bool:
            with store.transaction() as session:
                return bool(session.scalar(is_renewed, {"claimed_until": claimed_until}))

        eventually(renewed, what="a lease that was renewed past its end")
        engine.stuck_for = 100.0
        eventually(lambda: seconds_left(store) < 0, what="the end of the lease of a stuck engine")
        engine.stuck_for = 0.0
        eventually(lambda: seconds_left(store) > 0)
    eventually(lambda: seconds_left(store) < 0, what="the end of the lease of what is let go")
    kept.stop()


@pytest.mark.parametrize(
    ("sweep_seconds", "slots", "times"), [(60.0, 1, 2), (60.0, 7, 1), (60.0, 8, 0), (0.0, 1, 0)]
)
def test_claims_wake_the_dispatcher_if_they_outrun_its_sweeps(
    store: Store, monkeypatch: pytest.MonkeyPatch, sweep_seconds: float, slots: int, times: int
) -> None:
    woken: list[Session] = []
    monkeypatch.setattr(lease_keeper, "wake_dispatcher", woken.append)
    submit(store, num_requests=14)
    engine = cast("EngineThread", FakeEngine())
    own = LeaseKeeper(store, engine, worker="gpu@test", lease=SHORT, sweep_seconds=sweep_seconds, slots=slots)
    for shard_id in range(1, 8):
        with own.hold(shard_id) as held:
            assert held is not None
    assert len(woken) == times


def test_interactive_claims_take_no_tickets_and_wake_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[Session] = []
    monkeypatch.setattr(lease_keeper, "wake_dispatcher", woken.append)
    own = keeper(store, FakeEngine())
    for shard_id in range(1, 7):
        submit(store, num_requests=1, lane=Lane.INTERACTIVE)
        with own.hold(shard_id) as held:
            assert held is not None
    assert woken == []
