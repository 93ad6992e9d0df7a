"""How many requests a shard gets: as many as a worker runs in four seconds, from 64 to 256."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.files import reading
from api.files.reading import BatchReader
from tests.api.files.test_file_batches import sql
from tests.fixtures.inputs import body, line
from tests.fixtures.measured import measured_worker
from worker.settings import Settings
from worker.store.database.session import Store

# What a token costs: in a full Step of 64 Sequences, one takes a 64th of the Step and its own part.
STEP, ROW = 0.02, 0.002
TOKEN_SECONDS = STEP / 64 + ROW
LENGTHS = {5: 256, 10: round(4 / (10 * TOKEN_SECONDS)), 50: 64}  # tokens of each output, and the shard's size


@pytest.fixture
def config(config: Settings) -> Settings:
    return config.model_copy(update={"shard_size": None, "max_requests_per_batch": 600})


def sizes(store: Store) -> list[int]:
    return [count for (count,) in sql(store, "SELECT num_requests FROM shards ORDER BY position, id")]


def cut(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


def post(client: TestClient, count: int, max_tokens: int) -> None:
    given = {"prompts": [f"row {i}" for i in range(count)], "max_tokens": max_tokens, "ignore_eos": True}
    assert client.post("/v1/batch/async", json=given).status_code == 202


@pytest.mark.parametrize("max_tokens", LENGTHS)
def test_a_shard_of_a_batch_takes_four_seconds(client: TestClient, store: Store, max_tokens: int) -> None:
    measured_worker(store, step=STEP, row=ROW)
    post(client, 600, max_tokens)
    assert 64 < LENGTHS[10] < 256
    assert sizes(store) == cut(600, LENGTHS[max_tokens])


def test_live_workers_get_equally_many_requests(client: TestClient, store: Store) -> None:
    for worker in range(4):
        measured_worker(store, step=STEP, row=ROW, name=f"w{worker}")
    post(client, 600, 5)  # in three shards, but for the number of workers
    assert sizes(store) == [150] * 4


def test_a_shard_has_no_less_than_the_fewest_however_many_workers(client: TestClient, store: Store) -> None:
    for worker in range(8):
        measured_worker(store, step=STEP, row=ROW, name=f"w{worker}")
    post(client, 200, 5)
    assert sizes(store) == cut(200, 64)


def test_without_a_measured_worker_a_shard_has_the_fewest(client: TestClient, store: Store) -> None:
    post(client, 200, 5)
    assert sizes(store) == [64, 64, 64, 8]


def file_of(count: int, **changes: Any) -> bytes:
    """Return a file whose prompts differ; each has some 40 bytes, so 10 tokens or so."""
    own = {"max_tokens": 10} | changes
    return b"".join(line(f"row-{i}", body=body(prompt=f"{i:040}", **own)) for i in range(count))


def read(reader: BatchReader) -> None:
    while reader.turn():
        pass


def test_the_tokens_of_a_file_are_guessed_from_its_bytes(
    store: Store, reader: BatchReader, create: Any
) -> None:
    # 40 bytes are 10 tokens of the prompt; with those of the output, 0.02 s.
    measured_worker(store, step=0.0, row=0.001, token=0.001)
    create(file_of(300, ignore_eos=True))
    read(reader)
    assert sizes(store) == cut(300, 200)


def test_a_file_is_cut_by_time_alone(store: Store, reader: BatchReader, create: Any) -> None:
    for worker in range(4):
        measured_worker(store, step=0.0, row=0.001, token=0.001, name=f"w{worker}")
    create(file_of(300, ignore_eos=True))
    read(reader)
    assert sizes(store) == cut(300, 200)


def test_shards_of_later_chunks_come_after_those_of_earlier_ones(
    store: Store,
    reader: BatchReader,
    create: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 100)
    monkeypatch.setattr(reading, "MAX_CHUNK_LINES", 100)
    create(file_of(300))
    read(reader)
    assert sql(store, "SELECT position, num_requests FROM shards ORDER BY id") == [
        (0, 64),
        (1, 36),
        (2, 64),
        (3, 36),
        (4, 64),
        (5, 36),
    ]


def test_lines_that_generate_nothing_are_placed(store: Store, reader: BatchReader, create: Any) -> None:
    measured_worker(store)
    create(file_of(3, max_tokens=0, echo=True, logprobs=1))
    read(reader)
    assert sizes(store) == [3]


def test_an_estimate_counts_lines_that_generate_nothing(client: TestClient, store: Store) -> None:
    measured_worker(store)
    given = json.loads(line("row-0", body=body(max_tokens=0, echo=True, logprobs=1)))
    answer = client.post("/v1/batches/estimate", json={"lines": [given]})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["requests"], answer.json()["max_output_tokens"]) == (1, 0)
