import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient

from api.batches.result_schemas import ResultPage
from api.batches.schemas import BatchAnswer, BatchStats, BatchSubmission
from api.dashboard.schemas import Overview
from api.errors import OPENAI_STATUSES, ErrorBody, InvalidInputError, documented
from api.inputs.checkpoint import Checkpoint, ModelDirectoryError
from api.main import create_app
from api.metrics.schemas import CacheCleared, CacheStats, Summary
from api.usage.schemas import TenantsReport, UsageReport
from tests.fixtures.checkpoint import write_checkpoint
from worker.chat.template import ChatTemplateError
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.watching import workers


def test_health_needs_nothing(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "healthy"}


def test_ready_says_what_is_missing(client: TestClient, store: Store) -> None:
    answer = client.get("/ready")
    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "database": "ok", "broker": "ok", "worker": "failed"}
    with store.transaction() as session:
        workers.seen(session, name="gpu@here", queue="gpu", slots=4, info={})
    assert client.get("/ready").status_code == 200


def test_without_services_nothing_is_accepted_and_nothing_hangs(config: Settings) -> None:
    away = config.model_copy(
        update={
            "database_url": "postgresql+psycopg://postgres@127.0.0.1:1/none",
            "redis_url": "redis://127.0.0.1:1/0",
        }
    )
    with TestClient(create_app(away), raise_server_exceptions=False) as client:
        answer = client.post("/v1/batch/async", json={"prompts": ["ok"]})
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["type"] == "service_unavailable"
        assert client.get("/ready").json()["broker"] == "failed"
        assert client.get("/health").status_code == 200


def test_openapi_describes_every_route(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/metrics",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/version",
        "/v1/cache",
        "/v1/cache/stats",
        "/v1/metrics",
        "/v1/overview",
        "/v1/usage",
        "/v1/usage/tenants",
        "/ready",
        "/v1/audit",
        "/v1/autoscale",
        "/v1/batch",
        "/v1/batch/async",
        "/v1/batch/estimate",
        "/v1/batch/stats",
        "/v1/batch/sync",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/generate",
        "/v1/generate/batch",
        "/v1/model/info",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/messages",
        "/v1/messages/batches",
        "/v1/messages/batches/{batch_id}",
        "/v1/messages/batches/{batch_id}/cancel",
        "/v1/messages/batches/{batch_id}/results",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
        "/v1/batch/{batch_id}",
        "/v1/batch/{batch_id}/cancel",
        "/v1/batch/{batch_id}/events",
        "/v1/batch/{batch_id}/pause",
        "/v1/batch/{batch_id}/reassign",
        "/v1/batch/{batch_id}/requests/{index}/cancel",
        "/v1/batch/{batch_id}/results",
        "/v1/batches",
        "/v1/batches/{batch_id}",
        "/v1/batches/{batch_id}/cancel",
        "/v1/experiments",
        "/v1/experiments/{experiment_id}",
        "/v1/experiments/{experiment_id}/promote",
        "/v1/experiments/{experiment_id}/rollback",
        "/v1/files",
        "/v1/files/{file_id}",
        "/v1/files/{file_id}/content",
        "/v1/uploads",
        "/v1/uploads/{upload_id}/cancel",
        "/v1/uploads/{upload_id}/complete",
        "/v1/uploads/{upload_id}/parts",
        "/v1/webhooks/endpoints",
        "/v1/webhooks/endpoints/{endpoint_id}",
        "/v1/webhooks/endpoints/{endpoint_id}/ping",
        "/v1/webhooks/endpoints/{endpoint_id}/replay",
        "/v1/webhooks/endpoints/{endpoint_id}/rotate",
        "/v1/webhooks/events",
        "/v1/webhooks/events/{event_id}",
        "/v1/webhooks/events/{event_id}/attempts",
        "/v1/webhooks/events/{event_id}/replay",
        "/v1/batch/{batch_id}/resume",
        "/v1/batch/{batch_id}/retry",
        "/v1/batches/estimate",
        "/v1/keys",
        "/v1/keys/{prefix}",
        "/v1/keys/{prefix}/rotate",
        "/v1/tenants",
        "/v1/tenants/{tenant}",
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["summary"], path
            assert operation["description"], path
    schemas = document["components"]["schemas"]
    for name, model in {
        "BatchSubmission": BatchSubmission,
        "BatchAnswer": BatchAnswer,
        "ResultPage": ResultPage,
        "ErrorBody": ErrorBody,
        "BatchStats": BatchStats,
        "CacheCleared": CacheCleared,
        "CacheStats": CacheStats,
        "Overview": Overview,
        "Summary": Summary,
        "TenantsReport": TenantsReport,
        "UsageReport": UsageReport,
    }.items():
        for example in schemas[name]["examples"]:
            model.model_validate_json(json.dumps(example))
    assert client.get("/docs").status_code == 200


def test_the_document_names_every_answer(client: TestClient) -> None:
    """What any route may answer is documented with it; schemathesis holds the rest against it."""
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            statuses, where = set(operation["responses"]), f"{method} {path}"
            if "security" in operation:
                assert statuses >= {"401", "403", "429", "503"}, where
            if "requestBody" in operation:
                assert statuses >= {"400", "408", "413"}, where
            for status, answer in operation["responses"].items():
                assert status == "204" or answer["content"], f"{where}: {status}"
                assert int(status) < 400 or status == "503" or "ErrorBody" in str(answer), (
                    f"{where}: {status}"
                )
            wrong_field = {"400", "422"} & statuses
            if operation.get("parameters"):
                assert wrong_field, where
            is_openai = path.startswith(("/v1/chat/", "/v1/completions", "/v1/embeddings", "/v1/models"))
            is_openai |= path.startswith(("/v1/files", "/v1/uploads", "/v1/batches", "/v1/responses"))
            assert "422" not in statuses or not is_openai, where
    assert "ValidationError" not in document["components"]["schemas"]


def test_a_router_declares_that_it_is_for_openais_clients(config: Settings) -> None:
    """These know 400 and not 422; the path of a route does not matter."""
    app = create_app(config)

    def refuse() -> None:
        raise InvalidInputError("wrong")

    for prefix, marks in (("/v1/plain", []), ("/v1/theirs", [OPENAI_STATUSES])):
        router = APIRouter(prefix=prefix, dependencies=marks)
        router.get("/refuse", responses=documented(422))(refuse)
        app.include_router(router)
    with TestClient(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, status in (("/v1/plain/refuse", 422), ("/v1/theirs/refuse", 400)):
            assert client.get(path).status_code == status
            assert str(status) in paths[path]["get"]["responses"]


def test_the_address_alone_leads_to_the_dashboard(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize("path", ["/v1/batch/async", "/v1/batches", "/v1/completions"])
def test_a_body_that_is_not_sent_as_json_is_told_so(client: TestClient, path: str, kind: str | None) -> None:
    """`curl -d` sends a form unless it is told otherwise."""
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post(path, content=b'{"prompts": ["a"]}', headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_media_type")
    assert "`Content-Type: application/json`" in error["message"]
    assert (kind or "without a content type") in error["message"]


def test_a_wrong_method_is_told_all_right_ones(client: TestClient) -> None:
    right = {"/v1/batches": "GET, POST", "/v1/files/file-1": "DELETE, GET", "/v1/batch/async": "POST"}
    for path, methods in right.items():
        answer = client.put(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content + 1 }}", "{{ 1 / 0 }}", "{{ messages[9].content }}"]
)
def test_a_template_that_fails_refuses_the_messages(tmp_path: Path, template: str) -> None:
    checkpoint = Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        checkpoint.template.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", {"max_position_embeddings": 64, "vocab_size": [1]}, "vocab_size"),
        ("config.json", {"max_position_embeddings": 64, "hidden_size": "wide"}, "hidden_size"),
        ("tokenizer_config.json", {"chat_template": "{% for %}"}, "chat template"),
    ],
)
def test_a_model_directory_that_lies_is_refused(
    tmp_path: Path, file: str, content: dict[str, object], said: str
) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ModelDirectoryError, match=said):
        Checkpoint.load(tmp_path)


def test_a_model_without_a_template_refuses_messages(tmp_path: Path) -> None:
    checkpoint = Checkpoint.load(write_checkpoint(tmp_path))
    with pytest.raises(ChatTemplateError, match="no chat template"):
        checkpoint.template.render([{"role": "user", "content": "hi"}])


def test_tags_of_what_an_assistant_has_said_are_left_out(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{% set role = message.role %}<{{ role }}>"
        "{%- generation -%} {% set role = 'x' %}{{ message.content }}{{ bos_token }} {%- endgeneration -%}"
        "{{ role[0] }}{% endfor %}"
    )
    checkpoint = Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))
    assert checkpoint.template.render([{"role": "user", "content": "hi"}]) == "<user>hiu"
    assert {"messages", "bos_token"} == checkpoint.template.variables


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    checkpoint = Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))
    with pytest.raises(ChatTemplateError):
        checkpoint.template.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_broken_model_directory_is_named(tmp_path: Path, missing: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ModelDirectoryError, match=missing):
        Checkpoint.load(tmp_path)


def test_the_api_starts_without_torch() -> None:
    code = "import sys, api.main, api.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
