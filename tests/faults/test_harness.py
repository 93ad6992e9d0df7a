"""The harness itself: the same seed gives the same schedule, links cut, and what is wrong is found."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import text

from tests.faults.harness.interactive import Answer, TornStreamError, _whole_of
from tests.faults.harness.invariants import Findings, check
from tests.faults.harness.link import Links
from tests.faults.harness.load import Sent
from tests.faults.harness.receiver import Record
from tests.faults.harness.report import SeedReport, is_clean, last_line, lines
from tests.faults.harness.schedule import plan
from tests.faults.harness.services import Postgres
from tests.fixtures.batches import held, run_to_the_end, submit
from worker.contract.states import Lane
from worker.store.database.session import Store

KINDS = ("a", "b", "c")


class Database:
    """The part of a Postgres service that the checks use, over the tests' own store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def query(self, statement: str) -> list[tuple]:
        with self._store.transaction() as session:
            return [tuple(row) for row in session.execute(text(statement))]


@pytest.fixture
def sent(store: Store) -> Sent:
    """A batch that was run to its end and whose event has been delivered."""
    batch_id = submit(store, num_requests=2, shard_size=2, max_tokens=7, callback_url="http://127.0.0.1/hook")
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS audit_breaches (id bigserial, what text)"))
        session.execute(text("UPDATE deliveries SET state = 'delivered'"))
    return Sent(batch_id, "run", ("prompt 0", "prompt 1"), 7)


def heard(store: Store, batch_id: str) -> Record:
    record = Record()
    for (event_id,) in Database(store).query("SELECT id FROM webhook_events"):
        record.accepted[batch_id].append(event_id)
        record.bodies[event_id] = {"type": "batch.completed"}
    return record


def found(store: Store, sent: Sent, facts: Path, record: Record | None = None) -> Findings:
    record = record or heard(store, sent.batch_id)
    return check(cast("Postgres", Database(store)), [sent], [], record, facts)


def test_a_seed_is_a_schedule_and_every_kind_comes_equally_often() -> None:
    assert list(plan(3, 6, KINDS)) == list(plan(3, 6, KINDS)) != list(plan(4, 6, KINDS))
    kinds = [kind for seed in range(3) for _, kind in plan(seed, 4, KINDS)]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 4)


def test_nothing_is_found_where_all_is_well(store: Store, sent: Sent, tmp_path: Path) -> None:
    findings = found(store, sent, tmp_path)
    assert replace(findings, counts={}) == Findings(num_requests=2)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("DELETE FROM results WHERE sequence = 2", "lost"),
        ("UPDATE batches SET status = 'processing'", "lost"),
        ("DELETE FROM webhook_events", "lost"),
        ("UPDATE batches SET num_completed = 1", "broken"),
        ("UPDATE results SET sequence = 5 WHERE sequence = 2", "broken"),
        ("UPDATE results SET num_output_tokens = 6", "broken"),
        ("UPDATE shards SET worker = 'gpu@dead'", "broken"),
        ("UPDATE deliveries SET state = 'failed'", "broken"),
        ("INSERT INTO audit_breaches (what) VALUES ('a terminal state changed')", "broken"),
    ],
)
def test_damage_is_found(store: Store, sent: Sent, tmp_path: Path, damage: str, kind: str) -> None:
    record = heard(store, sent.batch_id)
    with store.transaction() as session:
        session.execute(text(damage))
    assert getattr(found(store, sent, tmp_path, record), kind)
    with store.transaction() as session:
        session.execute(text("DELETE FROM audit_breaches"))


def test_an_event_that_came_under_two_ids_is_found(store: Store, sent: Sent, tmp_path: Path) -> None:
    record = heard(store, sent.batch_id)
    record.accepted[sent.batch_id].append("evt_other")
    record.bodies["evt_other"] = {"type": "batch.completed"}
    assert found(store, sent, tmp_path, record).duplicated


def test_an_event_that_never_came_is_found(store: Store, sent: Sent, tmp_path: Path) -> None:
    assert found(store, sent, tmp_path, Record()).lost


def test_what_is_given_out_again_and_a_leaked_block_are_found(
    store: Store, sent: Sent, tmp_path: Path
) -> None:
    facts = [{"claimed": 1, "requests": [1, 2], "at": 4e9}, {"broken": "Block 3 counts 1 reference"}]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts) + '{"cut o')
    findings = found(store, sent, tmp_path)
    assert len(findings.duplicated) == 2
    assert findings.broken == ["Block 3 counts 1 reference"]


def test_a_link_stalls_heals_and_resets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Links().running() as links:
        link = links.to(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", link.port), timeout=30) as client:
            other, _ = server.accept()
            with other:
                client.sendall(b"one")
                assert other.recv(3) == b"one"
                link.stall()
                client.sendall(b"two")
                other.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    other.recv(3)
                link.heal()
                other.settimeout(30)
                assert other.recv(3) == b"two"
                link.reset()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)


def test_a_link_passes_a_commit_on_and_no_answer_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Links().running() as links:
        link = links.to(server.getsockname()[1])
        link.cut_commits(1)
        with socket.create_connection(("127.0.0.1", link.port), timeout=30) as client:
            other, _ = server.accept()
            with other:
                other.settimeout(30)
                client.sendall(b"SELECT 1")
                assert other.recv(100) == b"SELECT 1"
                client.sendall(b"Q\0\0\0\x0bCOMMIT\0")
                assert b"COMMIT" in other.recv(100)
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
        assert not link.is_cutting


def test_an_answer_that_is_not_the_stored_result_is_found(store: Store, tmp_path: Path) -> None:
    batch_id = submit(store, num_requests=1, lane=Lane.INTERACTIVE)
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS audit_breaches (id bigserial, what text)"))
    for told, num_broken in (("out prompt 0", 0), ("another", 1)):
        answers = [Answer(batch_id, "prompt 0", 10, told)]
        findings = check(cast("Postgres", Database(store)), [], answers, Record(), tmp_path)
        assert (findings.num_requests, len(findings.broken)) == (1, num_broken), findings


def test_a_stream_is_its_pieces_and_nothing_else() -> None:
    pieces = [{"text": "the "}, {"text": "whole"}]
    whole = {"text": "the whole", "batch_id": "batch_1"}
    assert _whole_of([*pieces, whole]) == whole
    with pytest.raises(TornStreamError):
        _whole_of([*pieces, whole | {"text": "the whale"}])


def test_seeds_that_were_run_before_are_summed_up(tmp_path: Path) -> None:
    first = SeedReport(1, faults=[("kill_gpu", 4.5), ("kill_gpu", 3.5)], num_requests=10)
    second = SeedReport(2, faults=[("kill_gpu", 8.0)], num_requests=5, broken=["counts of batch_1"])
    for one in (first, second):
        one.write(tmp_path)
    seeds = [found for seed in (1, 2, 3) if (found := SeedReport.read(tmp_path, seed))]
    assert seeds == [first, second]
    said = json.loads(last_line(seeds))
    assert (said["faults"], said["requests"], said["broken"], said["worst_recovery_s"]) == (3, 15, 1, 8.0)
    assert said["recovery_s"] == {"kill_gpu": {"faults": 3, "median": 4.5, "worst": 8.0}}
    assert (is_clean(seeds[:1]), is_clean(seeds)) == (True, False)
    assert "seed 2, broken: counts of batch_1" in lines(seeds)
