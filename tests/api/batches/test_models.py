"""A batch says which model it waits for and which made its results; reassigning gives it to another."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.main import create_app
from tests.fixtures.batches import LEASE, claim, held, result, serving
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.contract.models import Model, ServedModel, identify, label
from worker.contract.processes import MODELS, SWITCHING, ModelState
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.requests import models, partial_outputs
from worker.store.shards import shards
from worker.store.shards.shards import AfterSave, Progress
from worker.store.tenants import audit
from worker.store.watching import workers
from worker.values.results import PartialOutput

OTHER = Model("other", "f" * 32, "e" * 32)


@pytest.fixture
def own(config: Settings) -> Model:
    return identify(config.model)


def seen(store: Store, model: Model, *, slots: int = 4, context: int = 64) -> None:
    info = {
        "name": model.name,
        "model_fingerprint": model.fingerprint,
        "model_tokenizer": model.tokenizer,
        "max_model_len": context,
    }
    with store.transaction() as session:
        workers.seen(
            session, name=f"gpu@{model.name}/1", queue="gpu", slots=slots, info=info, model=model.fingerprint
        )


def submit(client: TestClient, prompts: list[str] | None = None, **fields: object) -> str:
    body = {"prompts": prompts or ["a", "b", "c", "d"]} | fields
    answer = client.post("/v1/batch/async", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["batch_id"])


def batch(client: TestClient, batch_id: str) -> dict[str, object]:
    return dict(client.get(f"/v1/batch/{batch_id}").json())


def bound_elsewhere(client: TestClient, store: Store, tokenizer: str = "e" * 32, **fields: object) -> str:
    """Submit a batch, and have it wait for another model."""
    batch_id = submit(client, **fields)
    with store.transaction() as session:
        session.execute(
            text(
                "UPDATE batches SET model_name = 'other', model_fingerprint = :model,"
                " model_tokenizer = :tokenizer"
            ),
            {"model": OTHER.fingerprint, "tokenizer": tokenizer},
        )
        session.execute(text("UPDATE shards SET model_fingerprint = :model"), {"model": OTHER.fingerprint})
    return batch_id


def reassign(client: TestClient, batch_id: str, model: str, status: int = 200) -> dict[str, object]:
    answer = client.post(f"/v1/batch/{batch_id}/reassign", json={"model": model})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_a_batch_says_which_model_it_is_for(client: TestClient, own: Model) -> None:
    shown = batch(client, submit(client))
    assert shown["model"] == {"name": own.name, "revision": own.fingerprint}


def test_a_result_names_the_model_that_made_it_not_the_one_served_now(
    client: TestClient, store: Store
) -> None:
    batch_id = bound_elsewhere(client, store)
    with store.transaction() as session:
        served = models.register(session, ServedModel(OTHER, "awq", "bf16"))
        mine = shards.claim(session, 1, worker="w", lease=LEASE, model=served)
        assert mine is not None
        shards.save(session, [Progress(mine, [result(1)], 0)], lease=LEASE)
    (found,) = client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    assert found["model"] == {
        "name": "other",
        "revision": OTHER.fingerprint,
        "weight_format": "awq",
        "dtype": "bf16",
    }


def test_what_waits_for_a_model_that_nobody_serves_says_so(
    client: TestClient, store: Store, own: Model
) -> None:
    batch_id = bound_elsewhere(client, store)
    seen(store, own)
    waiting = batch(client, batch_id)["waiting"]
    assert waiting["reason"] == "no_worker"  # type: ignore[index]
    assert waiting["message"] == f"no worker serves {label('other', OTHER.fingerprint)}"  # type: ignore[index]
    seen(store, OTHER)
    assert batch(client, batch_id)["waiting"]["reason"] == "starting"  # type: ignore[index]


def test_what_waits_for_its_models_turn_at_a_worker_says_so(
    client: TestClient, store: Store, own: Model
) -> None:
    def status() -> str:
        (found,) = client.get("/v1/models").json()["data"]
        assert client.get(f"/v1/models/{own.name}").json() == found
        return str(found["status"])

    assert status() == "unserved"
    assert client.get("/ready").json()["worker"] == "failed"
    batch_id = submit(client)
    seen(store, OTHER)
    info = {MODELS: {own.fingerprint: ModelState.UNLOADED, OTHER.fingerprint: ModelState.LOADED}}
    with store.transaction() as session:
        workers.seen(session, name="switching@here/1", queue=SWITCHING, slots=0, info=info)
    assert status() == "unloaded"
    assert client.get("/ready").json()["worker"] == "ok", "it is loaded when its turn comes"
    waiting = batch(client, batch_id)["waiting"]
    assert waiting == {
        "reason": "model_unloaded",
        "message": "a worker that runs another model loads this one when its turn comes",
        "position": 1,
        "batches_ahead": 0,
        "requests_ahead": 0,
    }
    seen(store, own, slots=0)
    assert (status(), batch(client, batch_id)["waiting"]["reason"]) == ("loading", "model_loading")  # type: ignore[index]
    seen(store, own)
    assert (status(), batch(client, batch_id)["waiting"]["reason"]) == ("loaded", "starting")  # type: ignore[index]


def test_ready_means_a_worker_of_this_model(client: TestClient, store: Store, own: Model) -> None:
    seen(store, OTHER)
    assert client.get("/ready").json()["worker"] == "failed"
    assert client.get("/v1/model/info").status_code == 503
    seen(store, own)
    assert client.get("/ready").json()["worker"] == "ok"


def test_another_checkpoint_of_the_same_name_is_another_model(tmp_path: Path) -> None:
    one, two = tmp_path / "1" / "demo", tmp_path / "2" / "demo"
    for directory, weights in ((one, b"1" * 300_000), (two, b"1" * 299_999 + b"2")):
        directory.mkdir(parents=True)
        write_checkpoint(directory, chat_template=TEMPLATE)
        (directory / "model.safetensors").write_bytes(weights)
    first, second = identify(one), identify(two)
    assert first.name == second.name
    assert first.fingerprint != second.fingerprint
    assert first.tokenizer == second.tokenizer
    config = json.loads((two / "config.json").read_text())
    (two / "model.safetensors").write_bytes(b"1" * 300_000)
    assert identify(two).fingerprint == first.fingerprint
    (two / "config.json").write_text(json.dumps(config | {"rope_theta": 5}))
    assert identify(two).fingerprint != first.fingerprint


def test_a_reassigned_batch_is_run_by_the_new_model_and_counted_by_its_tokenizer(
    client: TestClient, store: Store, own: Model
) -> None:
    batch_id = bound_elsewhere(client, store, prompts=["abc", "de"])
    with store.transaction() as session:
        session.execute(text("UPDATE requests SET num_prompt_tokens = 50, max_tokens = 14"))
        session.execute(text("UPDATE batches SET num_prompt_tokens = 100, max_output_tokens = 28"))
    old = held(store, 1)
    with store.transaction() as session:
        partial_outputs.keep(session, {1: PartialOutput((1, 2), "x", 7)})
    answer = reassign(client, batch_id, own.name)
    assert answer["model"] == {"name": own.name, "revision": own.fingerprint}
    with store.transaction() as session:
        (late,) = shards.save(session, [Progress(old, [result(1)], 0)], lease=LEASE)
    assert late is AfterSave.LOST, "the old model's worker has lost it"
    with store.transaction() as session:
        assert shards.claim(session, 1, worker="w", lease=LEASE, model=serving(OTHER.fingerprint)) is None
    claimed = claim(store, 1)
    assert claimed is not None
    assert [one.partial_output for one in claimed.requests] == [None, None]
    assert [one.max_tokens for one in claimed.requests] == [61, 62]
    with store.transaction() as session:
        assert session.execute(text("SELECT num_prompt_tokens, max_output_tokens FROM batches")).one() == (
            5,
            123,
        )
        (entry,) = audit.page(session)
    assert entry.tenant_id == "default"
    assert (entry.act, entry.target) == ("batch.reassign", batch_id)
    assert entry.details == {"from": label("other", OTHER.fingerprint), "to": own.label}


def test_what_does_not_fit_the_new_model_is_refused_whole(
    client: TestClient, store: Store, own: Model
) -> None:
    batch_id = bound_elsewhere(client, store, prompts=["a", "b"])
    with store.transaction() as session:
        session.execute(text("UPDATE requests SET prompt = repeat('x', 64) WHERE position = 1"))
    answer = reassign(client, batch_id, own.name, status=422)
    assert "request 1: the prompt has 64 tokens" in answer["error"]["message"]  # type: ignore[index]
    assert batch(client, batch_id)["model"] == {"name": "other", "revision": OTHER.fingerprint}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompts": None, "requests": [{"messages": [{"role": "user", "content": "hi"}]}]},
        {"prompts": ["a"], "logit_bias": {"5": 1.0}},
    ],
)
def test_what_means_nothing_to_another_tokenizer_is_refused(
    client: TestClient, store: Store, own: Model, fields: dict[str, object]
) -> None:
    body = {name: value for name, value in fields.items() if value is not None}
    answer = client.post("/v1/batch/async", json=body)
    assert answer.status_code == 202, answer.text
    batch_id = answer.json()["batch_id"]
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET model_fingerprint = 'x', model_tokenizer = 'y'"))
    assert reassign(client, batch_id, own.name, status=409)["error"]["code"] == "other_tokenizer"  # type: ignore[index]
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET model_tokenizer = :own"), {"own": own.tokenizer})
    reassign(client, batch_id, own.name)


def test_a_batch_goes_to_a_live_workers_model_only_with_the_same_tokenizer(
    client: TestClient, store: Store, own: Model
) -> None:
    batch_id = submit(client)
    reassign(client, batch_id, "other", status=404)
    seen(store, OTHER)
    reassign(client, batch_id, "other", status=409)
    seen(store, Model("other", "f" * 32, own.tokenizer), context=8)
    reassign(client, batch_id, "other", status=422)
    seen(store, Model("other", "f" * 32, own.tokenizer))
    assert reassign(client, batch_id, "other@ffff")["model"] == {"name": "other", "revision": "f" * 32}
    reassign(client, batch_id, "other@abcd", status=404)


def test_what_has_ended_is_not_reassigned(client: TestClient, own: Model) -> None:
    batch_id = submit(client)
    client.post(f"/v1/batch/{batch_id}/cancel")
    reassign(client, batch_id, own.name, status=409)
    reassign(client, "batch_none", own.name, status=404)


def test_what_was_accepted_before_models_were_recorded_can_be_adopted(
    client: TestClient, store: Store, own: Model
) -> None:
    batch_id = submit(client)
    with store.transaction() as session:
        session.execute(
            text("UPDATE batches SET model_name = NULL, model_fingerprint = NULL, model_tokenizer = NULL")
        )
        session.execute(text("UPDATE shards SET model_fingerprint = ''"))
    assert batch(client, batch_id)["model"] is None
    assert reassign(client, batch_id, own.name)["model"] == {"name": own.name, "revision": own.fingerprint}


def test_an_api_of_another_model_has_other_batches(client: TestClient, own: Model, tmp_path: Path) -> None:
    """The other API shows the batch, and accepts its own for its own model."""
    directory = tmp_path / "second"
    directory.mkdir()
    write_checkpoint(directory)
    settings = Settings(model=directory, shard_size=2)
    batch_id = submit(client)
    with TestClient(create_app(settings)) as second:
        assert batch(second, batch_id)["model"] == {"name": own.name, "revision": own.fingerprint}
        assert batch(second, submit(second))["model"] == {
            "name": "second",
            "revision": identify(directory).fingerprint,
        }
