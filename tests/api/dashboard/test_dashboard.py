"""The operators' page: what it may load, and that every name in it is a field of a route that answers."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.dashboard.routes import STATIC
from api.main import create_app
from tests.api.batches.test_models import seen
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import LEASE, held, result, submit
from tests.fixtures.webhooks import delivery_ids, end_batch, endpoint
from worker.contract.access import Scope
from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE
from worker.contract.models import Model, identify
from worker.contract.states import ExperimentMode, ExperimentStatus
from worker.settings import Settings
from worker.store.counts import meters
from worker.store.database.session import Store
from worker.store.rows.experiments import ExperimentLineRow, ExperimentRow
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.store.watching import workers
from worker.store.webhooks import receivers
from worker.values.outcomes import Outcome
from worker.values.results import RequestError

SCRIPT = (STATIC / "dashboard.js").read_text("utf-8")
VOID = {"meta", "link", "input", "polyline"}


@dataclass
class Page(HTMLParser):
    """What the page loads, and what it asks for."""

    sources: dict[str, str] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    rows: dict[str, set[str]] = field(default_factory=dict)
    acts: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    formats: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    ids: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    _within: list[tuple[str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed((STATIC / "dashboard.html").read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.forbidden += [name for name in given if name == "style" or name.startswith("on")]
        self.forbidden += [tag] * (tag == "style" or (tag == "script" and "src" not in given))
        self.loaded |= {given[name] for name in ("src", "href") if name in given}
        self.ids += [given["id"]] if "id" in given else []
        self.labels += given.get("aria-labelledby", "").split() + given.get("for", "").split()
        self.formats |= {given["data-as"]} if "data-as" in given else set()
        self.sources |= {
            name.removeprefix("data-source-"): value
            for name, value in given.items()
            if name.startswith("data-source-")
        }
        rows = given.get("data-rows") or next((rows for _, rows in self._within[::-1] if rows), None)
        if "data-rows" in given:
            self.rows[given["data-rows"]] = set()
        if "data-field" in given:
            (self.fields if rows is None else self.rows[rows]).add(given["data-field"])
        if "data-act" in given:
            assert rows is not None
            self.acts.append((rows, given))
        if tag not in VOID:
            self._within.append((tag, rows))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._within.pop()[0] == tag, f"</{tag}> closes something else"


@pytest.fixture
def page() -> Page:
    return Page()


def answers(client: TestClient, page: Page) -> dict[str, Any]:
    found = {name: client.get(f"/{path}") for name, path in page.sources.items()}
    assert {name: one.status_code for name, one in found.items()} == dict.fromkeys(page.sources, 200)
    return {name: one.json() for name, one in found.items()}


def pick(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data[int(name) if isinstance(data, list) else name]
    return data


def fill(store: Store) -> tuple[str, str]:
    """Have something in every table of the page; return a live and a failed batch."""
    failed_id = submit(store, num_requests=2)
    claimed = held(store, 1)
    error = RequestError("generation_failed", "the prompt is too long")
    first, second = (result(one.id) for one in claimed.requests)
    failed = replace(second, outcome=Outcome.FAILED, error=error)
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, [first, failed], 0, is_last=True)], lease=LEASE)
    live_id = submit(store, num_requests=4, shard_size=4)
    running = held(store, 2)
    with store.transaction() as session:
        shards.save(session, [Progress(running, [result(running.requests[0].id)], 5)], lease=LEASE)
    endpoint(store, "https://example.com/hook")
    end_batch(store)
    (delivery_id,) = delivery_ids(store)
    experiment = ExperimentRow(
        id="experiment_1",
        batch_id=failed_id,
        mode=ExperimentMode.AB,
        base_name="demo",
        model_name="small",
        model_fingerprint="b" * 32,
        share=0.5,
        allowed_loss=0.0,
        resolution=0.1,
        num_planned=626,
        num_requests=1,
        num_expected=1,
    )
    line = ExperimentLineRow(
        experiment_id="experiment_1",
        position=0,
        shadow_position=1,
        is_judged=True,
        right_a=True,
        right_b=False,
        failed_a=False,
        failed_b=True,
        tokens_a=8,
        tokens_b=4,
        seconds_a=1.0,
        seconds_b=0.25,
    )
    with store.transaction() as session:
        session.add(experiment)
        session.flush()
        session.add(line)
        session.execute(text("UPDATE deliveries SET attempts = 1 WHERE id = :id"), {"id": delivery_id})
        for key in session.scalars(text("SELECT receiver FROM deliveries")).all():
            receivers.record(session, key, is_healthy=False)
        info = {"name": "demo", "device": "cpu"}
        workers.seen(session, name="gpu@here", queue=GPU_QUEUE, slots=6, info=info)
        workers.seen(session, name="callbacks@here", queue=CALLBACKS_QUEUE, slots=8, info={})
        session.execute(text("UPDATE workers SET started_at = now() - interval '1 h'"))
        readings = {"decode_tokens": 600.0, "scheduled_sequences": 30.0, "sequence_rows": 40.0}
        meters.add(session, "gpu@here", readings | {"decode_seconds": 3.0, "steps": 10.0})
    return live_id, failed_id


def test_the_page_loads_nothing_but_its_own_files(client: TestClient, page: Page) -> None:
    found = client.get("/dashboard")
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert found.headers["x-frame-options"] == "DENY"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert page.forbidden == [], "what the policy forbids does not work"
    assert page.loaded == {"dashboard/dashboard.css", "dashboard/dashboard.js"}
    for path in page.loaded:
        loaded = client.get(f"/{path}")
        assert loaded.status_code == 200
        assert loaded.headers["x-content-type-options"] == "nosniff"
        assert "://" not in loaded.text
    assert client.get("/dashboard/routes.py").status_code == 422
    assert client.get("/dashboard/..%2Froutes.py").status_code in {404, 422}


def test_names_in_the_page_are_there_and_once(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert set(page.labels) <= set(page.ids)
    used = set(re.findall(r'getElementById\("([\w-]+)"\)', SCRIPT))
    assert used
    assert used <= set(page.ids)
    formats = re.search(r"const formats = \{(.*?)\n\};", SCRIPT, re.DOTALL)
    assert formats is not None
    assert page.formats <= set(re.findall(r"^  (\w+): ", formats[1], re.MULTILINE))
    assert "innerHTML" not in SCRIPT, "what comes from a customer is text"


def test_every_field_that_the_page_shows_is_answered(client: TestClient, store: Store, page: Page) -> None:
    fill(store)
    data = answers(client, page)
    assert page.fields
    for path in page.fields:
        assert not isinstance(pick(data, path), (dict, list)), path
    assert len(page.rows) == 6
    for path, names in page.rows.items():
        rows = pick(data, path)
        assert rows, f"{path} is empty: nothing of it was looked at"
        for row in rows:
            assert not any(isinstance(pick(row, name), (dict, list)) for name in names), path


def test_an_operator_promotes_and_rolls_back_from_the_page(
    locked: TestClient, store: Store, config: Settings, page: Page
) -> None:
    """By the routes that the buttons name, with the key that shows the page, for any tenant."""
    other = Model("small", "b" * 32, identify(config.model).tokenizer)
    seen(store, other)
    ours = bearer(make_key(store, "ours", scopes=(Scope.READ, Scope.SUBMIT)))
    theirs = bearer(make_key(store, "theirs", scopes=(Scope.READ, Scope.SUBMIT)))
    operator = bearer(make_key(store, scopes=(Scope.DEPLOYMENT,)))
    body = {"prompts": ["one", "two"], "experiment": {"model": "small"}}
    assert locked.post("/v1/batch/async", headers=ours, json=body).status_code == 202
    statuses = []
    for list_of_rows, given in page.acts:
        (row,) = pick({"overview": locked.get("/v1/overview", headers=operator).json()}, list_of_rows)
        assert pick(row, given["data-when"]) in given["data-in"].split()
        assert set(given["data-in"].split()) <= set(ExperimentStatus)
        assert not re.search("[{}]", complete(given["data-ask"], row))
        route = f"/{complete(given['data-act'], row)}"
        assert locked.post(route, headers=theirs).status_code == 404
        answer = locked.post(route, headers=operator)
        assert answer.status_code == 200, answer.text
        statuses.append(answer.json()["status"])
    assert statuses == ["promoted", "rolled_back"]
    log = locked.get("/v1/audit", headers=operator).json()["data"]
    assert {"experiment.promote", "experiment.roll_back"} <= {one["act"] for one in log}


def complete(text: str, row: dict[str, Any]) -> str:
    return re.sub(r"\{([\w.]+)\}", lambda found: str(pick(row, found[1])), text)


def test_an_empty_deployment_has_all_of_it_too(client: TestClient, page: Page) -> None:
    data = answers(client, page)
    for path in page.fields:
        pick(data, path)
    assert {path: pick(data, path) for path in page.rows} == {path: [] for path in page.rows}


def test_the_overview_is_of_now_and_of_everybody(client: TestClient, store: Store) -> None:
    live_id, failed_id = fill(store)
    found = client.get("/v1/overview").json()
    (batch,) = found["batches"]
    assert (batch["batch_id"], batch["tenant"], batch["status"]) == (live_id, "default", "processing")
    assert (batch["requests"], batch["requests_done"], batch["tokens"]) == (4, 1, 12)
    assert found["tokens_waiting"] == 3 * 3 + 3 * 10 - 5
    (failure,) = found["failures"]
    assert (failure["batch_id"], failure["requests_failed"], failure["requests"]) == (failed_id, 1, 2)
    assert (failure["error_code"], failure["error_message"]) == (
        "generation_failed",
        "the prompt is too long",
    )
    (experiment,) = found["experiments"]
    assert (experiment["tenant"], experiment["mode"], experiment["difference"]) == ("default", "ab", -1)
    assert (experiment["speedup"], experiment["cost_change"]) == (2, -0.75)
    gpu, callbacks = found["workers"]
    assert (gpu["name"], gpu["occupancy"], gpu["model"]) == ("gpu@here", 0.75, "demo")
    assert 600 / 120 <= gpu["tokens_per_second"] <= 600 / 59
    assert (callbacks["queue"], callbacks["tokens_per_second"]) == (CALLBACKS_QUEUE, None)
    (receiver,) = found["deliveries"]["failing_receivers"]
    assert (receiver["receiver"], receiver["failures_in_a_row"]) == ("https://example.com/hook", 1)
    assert {name: found["deliveries"][name] for name in ("waiting", "retrying", "failed")} == {
        "waiting": 0,
        "retrying": 1,
        "failed": 0,
    }


@pytest.fixture
def locked(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    with TestClient(create_app(config.model_copy(update={"auth": "keys"}))) as client:
        yield client


def test_a_deleted_batch_is_no_failure_to_look_at(client: TestClient, store: Store) -> None:
    _, failed_id = fill(store)
    assert client.delete(f"/v1/batch/{failed_id}").status_code == 204
    found = client.get("/v1/overview").json()
    assert (found["failures"], found["experiments"]) == ([], [])


def test_the_page_is_for_everybody_and_its_data_for_operators(
    locked: TestClient, store: Store, page: Page
) -> None:
    assert locked.get("/dashboard").status_code == 200
    reader = bearer(make_key(store, scopes=(Scope.READ, Scope.SUBMIT)))
    operator = bearer(make_key(store, scopes=(Scope.DEPLOYMENT,)))
    admin = bearer(make_key(store, scopes=(Scope.READ, Scope.SUBMIT, Scope.ADMIN)))
    for path in page.sources.values():
        assert locked.get(f"/{path}", headers=admin).status_code == 403
        assert locked.get(f"/{path}").status_code == 401
        refused = locked.get(f"/{path}", headers=reader)
        assert (refused.status_code, json.loads(refused.text)["error"]["code"]) == (403, "insufficient_scope")
        assert locked.get(f"/{path}", headers=operator).status_code == 200
