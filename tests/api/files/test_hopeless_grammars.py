"""Outputs that nothing can be, or that are too large to follow: refused before anything is stored."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from api.inputs.checkpoint import Checkpoint
from tests.fixtures.inputs import body, line
from worker.values.grammar import Grammar, GrammarError

SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "required in itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "items of itself": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "required and false": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "required and closed": {"type": "object", "required": ["a"], "additionalProperties": False},
    "nothing to choose": {"enum": []},
    "no number": {"type": "integer", "minimum": 3, "maximum": 2},
    "no integer": {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
    "no multiple": {"type": "integer", "minimum": 11, "maximum": 13, "multipleOf": 10},
    "no length": {"type": "string", "minLength": 3, "maxLength": 2},
    "pattern too long": {"type": "string", "pattern": "^abc$", "maxLength": 2},
    "format too long": {"type": "string", "format": "date", "maxLength": 2},
    "no such character": {"type": "string", "pattern": "^[^\\s\\S]$"},
    "no count": {"type": "array", "minItems": 3, "maxItems": 2},
    "no type": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "constant of another type": {"type": "string", "const": 3},
    "too many may be left out": {"type": "object", "properties": {f"p{i}": {} for i in range(550)}},
}
FIELDS: dict[str, dict[str, Any]] = {name: {"guided_json": schema} for name, schema in SCHEMAS.items()}
FIELDS |= {
    pattern: {"guided_regex": pattern}
    for pattern in (
        "[^\\s\\S]",
        "a[^\\s\\S]b",
        "a{1000000}",
        "(a{1000}){1000}",
        "[ab]{5}c{1000000}",
    )
}


@pytest.fixture(scope="module")
def demo() -> Checkpoint:
    return Checkpoint.load(Path("models/demo"))


@pytest.mark.parametrize("name", FIELDS)
def test_they_are_refused_at_every_door(client: TestClient, put: Callable[..., Response], name: str) -> None:
    (field,) = FIELDS[name]
    for path, sent, status, param in (
        ("batch/async", {"prompts": ["a"], **FIELDS[name]}, 422, field),
        ("batch/async", {"requests": [{"prompt": "a", **FIELDS[name]}]}, 422, f"requests[0].{field}"),
        ("batch/estimate", {"prompts": ["a"], **FIELDS[name]}, 422, field),
        ("generate", {"prompt": "a", **FIELDS[name]}, 422, field),
        ("completions", body(**FIELDS[name]), 400, field),
    ):
        answer = client.post(f"/v1/{path}", json=sent)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
        assert answer.json()["error"]["message"].startswith(f"{param}: ")
    if len(json.dumps(FIELDS[name])) < 2000:
        answer = put(line("a") + line("b", body=body(**FIELDS[name])))
        assert answer.status_code == 400
        assert "line 2" in answer.text
        assert field in answer.text


def test_they_say_what_is_wrong(client: TestClient) -> None:
    for name, message in (
        ("itself", "nothing can match it"),
        ("required in itself", "each would have to hold another without end"),
        ("[^\\s\\S]", "nothing can match it"),
        ("a{1000000}", "too complex to follow"),
        ("too many may be left out", "too complex to follow"),
        ("no number", "minimum (3) is greater than maximum (2)"),
    ):
        answer = client.post("/v1/batch/async", json={"prompts": ["a"], **FIELDS[name]})
        assert message in answer.json()["error"]["message"]
        assert "NoExtension" not in answer.text


@pytest.mark.parametrize("name", [*FIELDS, "(.{0,200}){0,200}"])
def test_they_are_refused_by_the_tokens_of_the_demo_model(demo: Checkpoint, name: str) -> None:
    schema = SCHEMAS.get(name)
    with pytest.raises(GrammarError):
        (Grammar.regex(name) if schema is None else Grammar.json_schema(schema)).check(demo.vocabulary)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "a[^\\s\\S]|b"},
        {"guided_regex": ""},
        {"guided_regex": ".{0,2000}"},
        {"guided_regex": "\\w{1,1000}"},
        {"guided_json": {"type": "array", "items": {"$ref": "#"}}},
        {"guided_json": {"type": "object", "properties": {"a": {"$ref": "#"}}}},
        {"guided_json": {"type": "object", "properties": {"a": False, "b": {}}, "required": ["b"]}},
        {"guided_choice": ["", "a"]},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
def test_what_can_be_is_taken(client: TestClient, fields: dict[str, Any]) -> None:
    assert client.post("/v1/batch/async", json={"prompts": ["a"], **fields}).status_code == 202
