"""Completes the OpenAPI document that FastAPI reads off the routes.

A route documents its own answers. This module adds the answers that any route may give because of the caller,
the body or the database, and for OpenAI's and Anthropic's clients puts 400 where the plain API answers 422.
It adds the examples in examples.json, by the name of a schema or by media type; FastAPI drops the nulls from
examples of a model itself.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel

from api.anthropic_errors import AnthropicErrorBody, is_own_path
from api.errors import ErrorBody, status_for

OF_CALLERS = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
OF_BODIES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
JSON = "application/json"
WRONG = str(int(HTTPStatus.UNPROCESSABLE_ENTITY))
FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
EXAMPLES = Path(__file__).with_name("examples.json")


def install(app: FastAPI) -> None:
    """Have the application serve the completed document."""
    read_off_routes = app.openapi

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(read_off_routes(), _statuses_of_wrong_input(app))
        return read_off_routes()

    app.openapi = whole  # type: ignore[method-assign]  # as FastAPI's documentation says


def _statuses_of_wrong_input(app: FastAPI) -> dict[str, HTTPStatus]:
    """Return, by path, the status that each route answers wrong input with."""
    contexts = iter_route_contexts(app.routes)
    wrong = HTTPStatus.UNPROCESSABLE_ENTITY
    return {str(one.path): HTTPStatus(status_for(one.original_route, wrong)) for one in contexts}


def _complete(document: dict[str, Any], wrong_input: Mapping[str, HTTPStatus]) -> None:
    for path, operations in document["paths"].items():
        body = AnthropicErrorBody if is_own_path(path) else ErrorBody
        for operation in operations.values():
            responses = operation["responses"]
            if "security" in operation:
                _add(responses, OF_CALLERS, body)
            if "requestBody" in operation:
                _add(responses, OF_BODIES, body)
            if JSON in operation.get("requestBody", {}).get("content", ()):
                _add(responses, [HTTPStatus.UNSUPPORTED_MEDIA_TYPE], body)
            if WRONG in responses:
                del responses[WRONG]
                _add(responses, [wrong_input[path]], body)
            operation["responses"] = dict(sorted(responses.items()))
    for name in FASTAPIS_OWN:
        document["components"]["schemas"].pop(name, None)
    _add_examples(document)


def _add_examples(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    examples = json.loads(EXAMPLES.read_text("utf-8"))
    for name, example in examples["schemas"].items():
        schemas[name].setdefault("examples", [example])
    for media_type, content in _contents(document):
        if media_type in examples["media_types"]:
            content.setdefault("example", examples["media_types"][media_type])


def _contents(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the media type and the description of every body and answer."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for described in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield from described.get("content", {}).items()


def _add(responses: dict[str, Any], statuses: Iterable[HTTPStatus], body: type[BaseModel]) -> None:
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
    for status in statuses:
        responses.setdefault(str(int(status)), {"description": status.phrase, "content": content})
