from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.forecasts.lengths import LearnedLengths, Range, spread
from tests.fixtures.batches import LEASE, held, result, submit
from worker.contract.messages import GPU_QUEUE
from worker.store import meters, shards, workers
from worker.store.session import Store
from worker.store.shards import Progress

URL = "/v1/batch/estimate"


def measure(store: Store) -> None:
    """Two workers, and rates of 1 ms a prompt token and 10 ms an output token, a tenth of it padding."""
    readings = {"prefill_tokens": 2000, "decode_tokens": 1000, "steps": 200}
    seconds = {"prefill_seconds": 1.8, "decode_seconds": 9.0, "padding_seconds": 1.2}
    with store.transaction() as session:
        for name in ("a", "b"):
            workers.seen(session, name=name, queue=GPU_QUEUE, slots=4, info={})
        meters.add(session, "a", readings | seconds)


def finish_batch(store: Store, lengths: list[int], *, limit: int) -> None:
    """A batch in the past, whose outputs were so long; those of the limit's length were cut."""
    submit(store, num_requests=len(lengths), shard_size=len(lengths), max_tokens=limit)
    with store.transaction() as session:
        shard_id = session.scalar(text("SELECT max(id) FROM shards"))
    claimed = held(store, shard_id or 0)
    results = [
        replace(
            result(one.id),
            num_output_tokens=length,
            finish_reason="length" if length == limit else "stop",
            max_tokens=limit,
        )
        for one, length in zip(claimed.requests, lengths, strict=True)
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, 0, is_last=True)], lease=LEASE)


def test_an_estimate_stores_nothing_and_counts_what_submit_would(client: TestClient, store: Store) -> None:
    body = {"prompts": ["aaaa", "bb", "aaaa"], "max_tokens": 10, "temperature": 0}
    answer = client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["requests"], found["duplicates"]) == (3, 1)
    assert (found["input_tokens"], found["max_output_tokens"]) == (10, 30)
    assert found["expected_output_tokens"] == {"low": 3, "expected": 30, "high": 30}
    assert (found["learned_from_batches"], found["cost_units"], found["finish"]) == (0, None, None)
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM batches")) == 0


def test_bad_input_is_refused_as_by_submit(client: TestClient) -> None:
    for body, param in (({"prompts": ["a", ""]}, "prompts[1]"), ({"prompts": ["a"], "top_k": -1}, "top_k")):
        answer = client.post(URL, json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["param"] == param


def test_lengths_are_learned_from_recent_batches(client: TestClient, store: Store) -> None:
    finish_batch(store, [4, 8, 20, 20], limit=20)
    finish_batch(store, [10, 10], limit=30)
    found = client.post(URL, json={"prompts": ["a", "b"], "max_tokens": 40}).json()
    # The first batch: 4, 8 and twice the new limit of 40; the second: 10.
    assert found["expected_output_tokens"] == {"low": 20, "expected": 33, "high": 46}
    assert found["learned_from_batches"] == 2
    capped = client.post(URL, json={"prompts": ["a", "b"], "max_tokens": 5}).json()
    assert capped["expected_output_tokens"]["high"] == 10
    exact = client.post(URL, json={"prompts": ["a", "b"], "max_tokens": 40, "ignore_eos": True}).json()
    assert exact["expected_output_tokens"] == {"low": 80, "expected": 80, "high": 80}


def test_cost_and_finish_follow_the_measured_rates(client: TestClient, store: Store) -> None:
    measure(store)
    body = {"prompts": ["a" * 50] * 20 + ["a" * 50], "max_tokens": 10, "temperature": 0.5, "ignore_eos": True}
    found = client.post(URL, json=body).json()
    expected = 21 * 50 * 0.001 + 21 * 10 * 0.01
    assert found["cost_units"]["expected"] == pytest.approx(expected)
    assert found["cost_units"]["low"] < expected < found["cost_units"]["high"]
    assert found["workers"] == 2
    assert found["finish"]["seconds"]["expected"] == pytest.approx(expected / 2, abs=0.002)
    assert found["finish"]["waiting_seconds"] == 0
    # Identical ones cost once.
    once = client.post(URL, json=body | {"temperature": 0}).json()
    assert once["cost_units"]["expected"] == pytest.approx(expected / 21, abs=0.002)


def test_one_request_takes_as_many_steps_as_it_has_tokens(client: TestClient, store: Store) -> None:
    measure(store)
    found = client.post(URL, json={"prompts": ["a"], "max_tokens": 30, "ignore_eos": True}).json()
    assert found["finish"]["seconds"]["expected"] == pytest.approx(30 * 12.0 / 200, abs=0.002)


def test_work_ahead_is_waited_for_by_priority(client: TestClient, store: Store) -> None:
    measure(store)
    submit(store, num_requests=100, max_tokens=50, priority=1)
    finish_batch(store, [25, 25], limit=50)
    body = {"prompts": ["a"], "completion_window": "10s", "ignore_eos": True, "max_tokens": 1}
    behind = client.post(URL, json=body).json()
    assert behind["requests_ahead"] == 100
    waiting = (100 * 3 * 0.001 + 100 * 25 * 0.01) / 2
    assert behind["finish"]["waiting_seconds"] == pytest.approx(waiting, abs=0.002)
    assert behind["finish"]["fits_window"] is False
    first = client.post(URL, json=body | {"priority": 2}).json()
    assert (first["requests_ahead"], first["finish"]["waiting_seconds"]) == (0, 0)
    assert first["finish"]["fits_window"] is True


def test_without_a_worker_there_is_a_cost_but_no_finish(client: TestClient, store: Store) -> None:
    measure(store)
    with store.transaction() as session:
        session.execute(text("UPDATE workers SET seen_at = now() - interval '1 hour'"))
    found = client.post(URL, json={"prompts": ["a"]}).json()
    assert (found["workers"], found["finish"]) == (0, None)
    assert found["cost_units"]["expected"] > 0


def test_a_range_leaves_out_the_outermost_of_many() -> None:
    assert spread([3.0]) == Range(3.0, 3.0, 3.0)
    assert spread([0.0, *range(1, 19), 1000.0]) == Range(2.0, 58.55, 17.0)


def test_an_output_that_was_cut_would_have_gone_on() -> None:
    learned = LearnedLengths([[10, None]])
    assert learned.expect([20]) == Range(15.0, 15.0, 15.0)
    assert learned.expect([4, 4]) == Range(8.0, 8.0, 8.0)
