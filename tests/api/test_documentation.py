"""/docs needs no other server, and what the OpenAPI document shows is complete and true."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator

from api.main import create_app
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.database.session import Store

METHODS = {"get", "post", "put", "patch", "delete"}


class Links(HTMLParser):
    """The addresses that a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.found += [value or "" for name, value in attrs if name in {"href", "src", "action"}]


def test_the_page_loads_everything_from_this_server(client: TestClient) -> None:
    page = client.get("/docs")
    links = Links()
    links.feed(page.text)
    loaded = {link for link in links.found if not link.startswith("data:")}
    assert {link.rpartition("/")[2] for link in loaded} == {
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "docs.js",
        "openapi.json",
    }
    script = client.get("/docs/docs.js").text
    address = re.search(r'url: "(.*?)"', script)
    assert address is not None
    for link in {*loaded, address[1]}:
        assert not re.match(r"\w+:|//", link), f"{link} is elsewhere"
        answer = client.get(urljoin("/docs", link))
        assert answer.status_code == 200, link
        assert answer.content
    assert not re.search(r"https?:", page.text + script)


def test_the_page_may_load_nothing_else(client: TestClient) -> None:
    """Whatever the script of Swagger UI asks for, the browser refuses every other server."""
    for path in ("/docs", "/docs/docs.js"):
        rules = dict(
            rule.strip().split(" ", 1)
            for rule in client.get(path).headers["content-security-policy"].split(";")
        )
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["connect-src"] == "'self'"
        assert not re.search(r"\*|https?:|//|unsafe-eval", " ".join(rules.values()))
    assert client.get("/docs/../main.py").status_code == 404
    assert client.get("/docs/redoc.standalone.js").status_code == 422


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    whole: dict[str, Any] = create_app().openapi()
    return whole


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield method, path, operation


def named(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the one that it names."""
    schema = next((one for one in schema.get("anyOf", ()) if "$ref" in one), schema)
    reference = schema.get("$ref")
    found: dict[str, Any] = (
        document["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema
    )
    return found


def examples(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Yield where something is described, its schema, and its examples."""
    for method, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            where = f"{method} {path} {parameter['name']}"
            if parameter["in"] == "path":
                yield where, parameter["schema"], parameter["schema"].get("examples", [])
        bodies = {"body": operation["requestBody"]} if "requestBody" in operation else {}
        for name, described in (bodies | operation["responses"]).items():
            for media_type, content in described.get("content", {}).items():
                schema = content["schema"]
                given = (
                    [content["example"]]
                    if "example" in content
                    else named(document, schema).get("examples", [])
                )
                yield f"{method} {path} {name} {media_type}", schema, given


def test_every_body_answer_and_path_has_an_example_that_fits_its_schema(document: dict[str, Any]) -> None:
    seen = 0
    for where, schema, given in examples(document):
        assert given, f"{where} has no example"
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for example in given:
            problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(example)]
            assert not problems, f"{where}: {problems}"
            seen += 1
    assert seen > 200


def test_every_schema_has_examples_that_fit(document: dict[str, Any]) -> None:
    """Those of schemas that no route names itself, too."""
    for name, schema in document["components"]["schemas"].items():
        validator = Draft202012Validator({**schema, "components": document["components"]})
        for example in schema.get("examples", ()):
            assert not list(validator.iter_errors(example)), name


def test_an_example_that_does_not_fit_is_found(document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/BatchStats", "components": document["components"]}
    assert list(Draft202012Validator(schema).iter_errors({"total_batches": "many"}))


def test_every_operation_says_what_it_does_and_how_it_fails(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        failures = {status: one for status, one in operation["responses"].items() if int(status) >= 400}
        assert failures or path == "/health", f"{where}: no error is documented"
        for status, answer in failures.items():
            schema = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            wanted = "AnthropicErrorBody" if path.startswith("/v1/messages") else "ErrorBody"
            assert schema == wanted or (path, status) == ("/ready", "503"), f"{where}: {status}"


def test_the_examples_of_bodies_are_accepted(store: Store, config: Settings, tmp_path: Any) -> None:  # noqa: ARG001
    """A refused field is answered with 400 or 422. Nothing that they name exists here, and no worker runs."""
    directory = tmp_path / "demo"
    directory.mkdir()
    served = config.model_copy(
        update={"model": write_checkpoint(directory, chat_template=TEMPLATE), "wait_seconds": 0.01}
    )
    app = create_app(served)
    whole = app.openapi()
    tried = 0
    with TestClient(app) as client:
        for method, path, operation in operations(whole):
            content = operation.get("requestBody", {}).get("content", {})
            for example in named(whole, content.get("application/json", {}).get("schema", {})).get(
                "examples", []
            ):
                where = re.sub(r"\{\w+\}", "none", path)
                answer = client.request(method, where, json=shortened(example))
                assert answer.status_code not in {400, 422}, f"{method} {path}: {answer.text}"
                tried += 1
    assert tried >= 15


def shortened(example: Any) -> Any:
    """Return an example that fits the tiny model's context, and does not wait."""
    limits = {"max_tokens": 4, "max_output_tokens": 4, "wait_seconds": 0}
    changed = {key: limits.get(key, value) for key, value in example.items()}
    if "requests" in changed:
        changed["requests"] = [shortened(one) for one in changed["requests"]]
    return json.loads(json.dumps(changed))
