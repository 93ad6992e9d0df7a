"""Who starts and stops workers reads here how many are wanted."""

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from api.main import create_app
from tests.fixtures.batches import submit
from worker.contract.models import Model
from worker.dispatcher.autoscaler import Autoscaler
from worker.settings import Settings
from worker.store.database.session import Store


def decide(store: Store, config: Settings) -> None:
    submit(store, num_requests=3, model=Model("tiny", "ab12" * 8, "t"))
    Autoscaler(store, config, most=4).decide()


def test_the_last_decision_is_shown(client: TestClient, store: Store, config: Settings) -> None:
    assert client.get("/v1/autoscale").json() == {"object": "list", "data": []}
    decide(store, config)
    (found,) = client.get("/v1/autoscale").json()["data"]
    assert (found["model"], found["revision"]) == ("tiny", "ab12" * 8)
    assert (found["wanted"], found["on_demand"], found["spot"], found["ready"]) == (1, 1, 0, 0)
    assert found["requests"] == 3
    assert found["tokens"] > 0


def test_metrics_have_the_wanted_workers(client: TestClient, store: Store, config: Settings) -> None:
    decide(store, config)
    families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    wanted = {
        (one.labels["model"], one.labels["capacity"]): one.value
        for one in families["headrace_wanted_workers"].samples
    }
    assert wanted == {("tiny@ab12ab12", "on-demand"): 1.0, ("tiny@ab12ab12", "spot"): 0.0}
    assert families["headrace_backlog_tokens"].samples[0].value > 0


def test_where_workers_are_scaled_none_need_be_there(client: TestClient, config: Settings) -> None:
    assert client.get("/ready").status_code == 503
    with TestClient(create_app(config.model_copy(update={"max_workers": 1}))) as scaled:
        assert scaled.get("/ready").json()["worker"] == "ok"
