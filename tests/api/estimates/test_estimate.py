from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, submit
from tests.fixtures.measured import measured_worker
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.store.watching import outlook
from worker.values.sampling import SamplingParams

URL = "/v1/batch/estimate"


def finish_batch(store: Store, lengths: list[int], *, limit: int, **batch: object) -> None:
    """A batch in the past, whose outputs were so long; those of the limit's length were cut."""
    submit(store, num_requests=len(lengths), shard_size=len(lengths), max_tokens=limit, **batch)
    with store.transaction() as session:
        shard_id = session.scalar(text("SELECT max(id) FROM shards"))
    claimed = held(store, shard_id or 0)
    results = [
        replace(
            result(one.id),
            num_output_tokens=length,
            finish_reason="length" if length == limit else "stop",
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
    assert found["expected_at_limit"] == 3
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
    assert found["learned_from_batches"] == 2
    guess = found["expected_output_tokens"]
    assert 2 <= guess["low"] < guess["expected"] < guess["high"] <= 80
    capped = client.post(URL, json={"prompts": ["a", "b"], "max_tokens": 3}).json()
    assert capped["expected_output_tokens"] == {"low": 6, "expected": 6, "high": 6}
    assert capped["expected_at_limit"] == 2, "none ended as early as that"
    exact = client.post(URL, json={"prompts": ["a", "b"], "max_tokens": 40, "ignore_eos": True}).json()
    assert exact["expected_output_tokens"] == {"low": 80, "expected": 80, "high": 80}


def test_outputs_that_were_told_to_go_on_teach_nothing(client: TestClient, store: Store) -> None:
    finish_batch(store, [20, 20, 20], limit=20, params=SamplingParams(max_tokens=20, ignore_eos=True))
    finish_batch(store, [2, 2, 3], limit=20)
    found = client.post(URL, json={"prompts": ["a"] * 10, "max_tokens": 20, "temperature": 1}).json()
    assert found["learned_from_batches"] == 1
    assert found["expected_output_tokens"]["expected"] < 60


def test_cost_and_finish_follow_what_steps_cost(client: TestClient, store: Store) -> None:
    measured_worker(store)
    body = {"prompts": ["a"] * 21, "max_tokens": 50, "temperature": 0.5, "ignore_eos": True}
    found = client.post(URL, json=body).json()
    alone = 50 * (0.01 + 21 * 0.001)
    assert found["cost_units"]["expected"] == pytest.approx(alone, rel=0.02)
    seconds = found["finish"]["seconds"]
    assert seconds["low"] < alone < seconds["expected"] < seconds["high"]
    assert found["finish"]["waiting_seconds"] == 0
    # Identical ones cost once.
    once = client.post(URL, json=body | {"temperature": 0}).json()
    assert once["cost_units"]["expected"] == pytest.approx(50 * 0.011, rel=0.02)


def test_one_prompt_at_a_time_does_not_teach_how_slow_many_are(client: TestClient, store: Store) -> None:
    # Its Steps make 22 tokens a second with one row, and 1,600 with 64.
    measured_worker(store, step=0.045, row=0.0, max_rows=1)
    body = {"prompts": ["a"] * 640, "max_tokens": 50, "temperature": 0.5, "ignore_eos": True}
    seconds = client.post(URL, json=body | {"prompts": ["a"] * 400}).json()["finish"]["seconds"]
    assert seconds["low"] < 400 * 50 / 1600 < seconds["high"]
    assert seconds["high"] > 5 * seconds["low"], "what many rows cost is not known"


def test_work_ahead_is_waited_for_by_priority(client: TestClient, store: Store) -> None:
    measured_worker(store)
    submit(store, num_requests=640, max_tokens=50, priority=1)
    body = {"prompts": ["a"], "completion_window": "1s", "ignore_eos": True, "max_tokens": 1}
    behind = client.post(URL, json=body).json()
    assert behind["requests_ahead"] == 640
    assert behind["finish"]["waiting_seconds"] == pytest.approx(0.8 * 500 * 0.074, rel=0.1)
    assert (behind["finish"]["fits_window"], behind["finish"]["may_fit_window"]) == (False, False)
    beside = client.post(URL, json=body | {"priority": 1, "completion_window": "5s"}).json()
    assert beside["finish"]["waiting_seconds"] < 0.2, "batches of one priority share"
    first = client.post(URL, json=body | {"priority": 2, "completion_window": "5s"}).json()
    assert (first["requests_ahead"], first["finish"]["waiting_seconds"]) == (0, 0)
    assert (first["finish"]["fits_window"], first["finish"]["may_fit_window"]) == (True, True)


def test_without_a_worker_that_has_measured_nothing_is_known(client: TestClient, store: Store) -> None:
    assert client.post(URL, json={"prompts": ["a"]}).json()["finish"] is None
    measured_worker(store, is_measured=False)
    found = client.post(URL, json={"prompts": ["a"], "completion_window": "1s"}).json()
    assert (found["workers"], found["finish"], found["cost_units"]) == (1, None, None)
    accepted = client.post("/v1/batch/async", json={"prompts": ["a"], "completion_window": "1s"})
    assert accepted.status_code == 202


def test_what_came_of_forecasts_sets_the_next_one_right(client: TestClient, store: Store) -> None:
    measured_worker(store)
    body = {"prompts": ["a"] * 64, "max_tokens": 50, "temperature": 0.5, "ignore_eos": True}
    before = client.post(URL, json=body).json()["finish"]["seconds"]
    forecast = 50 * 0.074
    with store.transaction() as session:
        assert outlook.forecast_outcomes(session) == []
    for taken in (20.0, 21.0, 22.0, 23.0) * 4:
        batch_id = client.post("/v1/batch/async", json=body | {"prompts": ["a"]}).json()["batch_id"]
        with store.transaction() as session:
            found = session.scalar(
                text("SELECT forecast_seconds FROM batches WHERE id = :id"), {"id": batch_id}
            )
            assert found == pytest.approx(50 * 0.011, rel=0.01)
            session.execute(
                text(
                    "UPDATE batches SET status = 'completed', forecast_seconds = :forecast,"
                    " created_at = now() - :taken * interval '1 second', finished_at = now() WHERE id = :id"
                ),
                {"id": batch_id, "forecast": forecast, "taken": taken},
            )
    after = client.post(URL, json=body).json()["finish"]["seconds"]
    assert before["expected"] == pytest.approx(forecast + 0.3, rel=0.02)
    assert after["expected"] == pytest.approx(21.5, rel=0.1)
    assert after["high"] / after["low"] < before["high"] / before["low"]
