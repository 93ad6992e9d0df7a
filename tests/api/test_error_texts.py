"""What clients are told of wrong input, in words of the API and of nothing behind it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from api.wrong_fields import CODES
from tests.fixtures.checkpoint import CONTEXT
from worker.up import ROOT

WRONG: list[Any] = [
    None,
    True,
    -1,
    5,
    10**30,
    0.5,
    "",
    "x",
    "\x00",
    "x" * 12_000,
    [],
    [[]],
    [-1],
    [5, "x"],
    ["x", 5],
    [""],
    [{}],
    [[-1]],
    {},
    {"unknown": {"nested": [{}]}},
    {"x" * 70: "x"},
]
WRONG_TEXTS = ["", "-1", "x", "0", "9" * 30, "1.5", "nan", "%00", "x" * 5000]
RAW = [b"", b"{", b"5", b"[]", b'"x"', b"null", b"\xff", b'{"a": "\xff"}', b"[" * 50_000]
RAW += [b'{"max_tokens": ' + b"9" * 5000 + b"}", b'{"a": NaN}']
INTERNAL = re.compile(
    r"function-|0x[0-9a-f]|functools|partial\(|lambda|pydantic|python|Traceback|object at|dict_|_type\b"
    r"|[Ii]nput should|[Ee]xtra inputs|Field required|Value error|String should|after validation|not valid$"
    r"|valid (string|integer|number|list|dictionary|boolean|tuple)|NoneType|\b(str|int|float|dict|bool)\b"
)


def class_names(of: type[BaseModel] = BaseModel) -> Iterator[str]:
    for one in of.__subclasses__():
        if one.__module__.startswith("api."):
            yield one.__name__
        yield from class_names(one)


class Walk:
    """Sends what is wrong to every route of the document, a field at a time, and keeps what is answered."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.document = client.get("/openapi.json").json()
        self.errors: list[tuple[str, dict[str, Any]]] = []
        self.fields: set[str] = set()  # that were tried with every value; many routes share them

    def all(self) -> None:
        for path, operations in self.document["paths"].items():
            for method, operation in operations.items():
                self._parameters(method, path, operation.get("parameters", []))
                for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                    if kind == "application/json":
                        self._bodies(method, path, self._resolved(content["schema"]))
                    else:
                        self._forms(method, path, self._resolved(content["schema"]))

    def ask(self, what: str, method: str, path: str, **request: Any) -> None:
        path = re.sub(r"\{[^}]*index[^}]*\}", "0", path)
        answer = self.client.request(method, re.sub(r"\{[^}]+\}", "none", path), **request)
        assert answer.status_code < 500 or answer.status_code == 503, (what, answer.text)
        if answer.status_code >= 400:
            self.errors.append((what, answer.json()["error"]))

    def _parameters(self, method: str, path: str, parameters: list[dict[str, Any]]) -> None:
        for parameter in parameters:
            name, what = parameter["name"], f"{method} {path} {parameter['name']}"
            for value in WRONG_TEXTS:
                if parameter["in"] == "query":
                    self.ask(what, method, f"{path}?{name}={value}")
                elif parameter["in"] == "path":
                    self.ask(what, method, path.replace(f"{{{name}}}", value or "%20"))
                else:
                    self.ask(what, method, path, headers={name: value})

    def _bodies(self, method: str, path: str, schema: dict[str, Any]) -> None:
        for raw in RAW:
            self.ask(
                f"{method} {path} {raw[:20]!r}",
                method,
                path,
                content=raw,
                headers={"content-type": "application/json"},
            )
        right = self._right(schema)
        for name, wrong in self._wrong(schema, right, depth=3):
            self.ask(f"{method} {path} {name}", method, path, json=wrong)

    def _forms(self, method: str, path: str, schema: dict[str, Any]) -> None:
        names = list(schema["properties"])
        for name in [*names, "unknown"]:
            for value in WRONG_TEXTS[:-1]:
                files: dict[str, Any] = {one: (None, "batch") for one in names if one in schema["required"]}
                for file_field in {"file", "data"} & files.keys():
                    files[file_field] = ("lines.jsonl", b"{}\n")
                what = f"{method} {path} {name}"
                self.ask(what, method, path, files=files | {name: (None, value)})
                self.ask(what, method, path, files=files | {name: ("x.jsonl", value.encode())})
        self.ask(
            f"{method} {path}", method, path, content=b"x", headers={"content-type": "multipart/form-data"}
        )
        self.ask(f"{method} {path}", method, path, json={})

    def _wrong(self, schema: dict[str, Any], right: Any, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield values of a shape with one thing wrong in each."""
        schema = self._resolved(schema)
        for option in schema.get("anyOf", []) + schema.get("oneOf", []):
            yield from self._wrong(option, self._right(option), depth)
        if not depth:
            return
        if "properties" in schema and isinstance(right, dict):
            yield from self._wrong_fields(schema, right, depth)
        elif schema.get("type") == "array":
            for path, value in self._wrong(schema["items"], self._right(schema["items"]), depth - 1):
                yield f"[0].{path}", [value]
        elif isinstance(schema.get("additionalProperties"), dict):
            for value in WRONG:
                yield ".5", {"5": value}

    def _wrong_fields(self, schema: dict[str, Any], right: Any, depth: int) -> Iterator[tuple[str, Any]]:
        yield "unknown", right | {"unknown": 1}
        for name in schema.get("required", []):
            yield f"no {name}", {key: value for key, value in right.items() if key != name}
        for name, inner in schema["properties"].items():
            is_new = (known := f"{name}: {inner}") not in self.fields
            self.fields.add(known)
            for value in WRONG if is_new else WRONG[::7]:
                yield name, right | {name: value}
            for path, value in self._wrong(inner, self._right(inner), depth - 1) if is_new else ():
                yield f"{name}.{path}", right | {name: value}

    def _right(self, schema: dict[str, Any]) -> Any:
        """Return a value of a shape with nothing wrong, and nothing in it that need not be."""
        schema = self._resolved(schema)
        if "examples" in schema:
            return schema["examples"][0]
        if "const" in schema or "enum" in schema:
            return schema.get("const") or schema["enum"][0]
        for options in ("anyOf", "oneOf"):
            if options in schema:
                return self._right(schema[options][0])
        if schema.get("type") == "object" or "properties" in schema:
            names = schema.get("required", [])
            return {name: self._right(schema["properties"][name]) for name in names} | (
                {"wait_seconds": 0} if "wait_seconds" in schema.get("properties", {}) else {}
            )
        if schema.get("type") == "array":
            return [self._right(schema["items"])]
        return {"integer": schema.get("minimum", 1), "number": 1.0, "boolean": True}.get(
            schema.get("type"), "x"
        )

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema


def documented_codes() -> set[str]:
    rows = (ROOT / "docs" / "errors.md").read_text().splitlines()
    first_cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    return {code for cell in first_cells for code in re.findall("`([a-z_]+)`", cell)}


def test_the_codes_of_the_source_are_the_documented_ones() -> None:
    source = "".join(file.read_text() for top in ("api", "worker") for file in (ROOT / top).rglob("*.py"))
    written = set(re.findall(r"""\bcode=["']([a-z_]+)|default_code = "([a-z_]+)""", source))
    codes = {one for pair in written for one in pair if one} | set(CODES.values())
    codes |= set(re.findall(r"""(?:WrongLineError|RequestError)\(\s*"([a-z_]+)\"""", source))
    assert codes - documented_codes() == set()
    named = {code for code in documented_codes() if f'"{code}"' in source or code.startswith("quota_")}
    assert documented_codes() - named == {"method_not_allowed"}  # Python's name of the status


@pytest.mark.slow
def test_no_error_shows_what_is_behind_the_api(client: TestClient) -> None:
    walk = Walk(client)
    walk.all()
    assert len(walk.errors) > 3000, "the walk finds nothing wrong"
    assert {error["code"] for _, error in walk.errors} <= documented_codes()
    names = re.compile(rf"\b({'|'.join(set(class_names()))})\b")
    shown = {
        (what, error["param"], error["message"])
        for what, error in walk.errors
        for said in (error["message"], error["param"] or "")
        if INTERNAL.search(unquoted := re.sub("'[^']*'|mime_type", "", said)) or names.search(unquoted)
    }
    assert shown == set()


@pytest.mark.parametrize(
    ("field", "value", "param", "message"),
    [
        ("prompt", [], "prompt", "must not be empty"),
        ("prompt", "", "prompt", "must not be empty"),
        ("prompt", [-1], "prompt[0]", "must be at least 0, but is -1"),
        ("prompt", [[]], "prompt[0]", "must not be empty"),
        ("prompt", ["a", ""], "prompt[1]", "must not be empty"),
        ("prompt", ["a", 5], "prompt[1]", "must be a string"),
        (
            "prompt",
            5,
            "prompt",
            "must be a string, a list of strings, a list of token ids or a list of such lists",
        ),
        ("prompt", ["a", "\x00"], "prompt[1]", "must not contain the NUL character"),
        ("prompt", [5, 256], "prompt", "token id 256 is not in the vocabulary, 0 to 255"),
        ("stop", 5, "stop", "must be a string or a list of strings"),
        ("stop", ["a"] * 17, "stop", "must have at most 16 items"),
        ("stop", ["a", ""], "stop[1]", "must not be empty"),
        ("temperature", 3, "temperature", "must be at most 2, but is 3"),
        ("temperature", "hot", "temperature", "must be a number"),
        ("max_tokens", 1.5, "max_tokens", "must be a whole number"),
        ("logit_bias", {"7": 1, "x": 1}, "logit_bias", "its keys must be token ids, but 'x' is not one"),
        ("logit_bias", {"7": 1, "300": 1}, "logit_bias", "token id 300 is not in the vocabulary, 0 to 255"),
        ("logit_bias", {"7": 200}, "logit_bias.7", "must be at most 100, but is 200"),
        ("stop_token_ids", [7, 300], "stop_token_ids", "token id 300 is not in the vocabulary, 0 to 255"),
        ("stop_token_ids", [7, -3], "stop_token_ids[1]", "must be at least 0, but is -3"),
        (
            "response_format",
            {"type": "xml"},
            "response_format",
            "'type' must be one of 'text', 'json_object', 'json_schema'",
        ),
        ("response_format", {}, "response_format", "'type' is required"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
            "is required",
        ),
    ],
)
def test_a_message_names_the_field_and_the_rule(
    client: TestClient, config: Any, field: str, value: Any, param: str, message: str
) -> None:
    body = {"model": config.model.name, "prompt": "a"} | {field: value}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], error["message"]) == (param, f"{param}: {message}")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    put = client.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line).encode())}
    )
    if field != "prompt" or value != [5, 256]:  # tokens are counted, and looked at, when it runs
        (told,) = put.json()["error"]["lines"]
        assert (told["param"], told["message"]) == (f"body.{param}", f"body.{param}: {message}")
    if field == "prompt":
        error = client.post("/v1/embeddings", json={"model": config.model.name, "input": value}).json()[
            "error"
        ]
        assert error["message"] == f"{param}: {message}".replace("prompt", "input", 1)


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([{"role": "user"}], "messages[0].content", "is required"),
        ([{"role": "user", "content": None}], "messages[0].content", "is required"),
        (
            [{"role": "user", "content": 3}],
            "messages[0].content",
            "must be a string or a list of text parts",
        ),
        ([{"role": "user", "content": []}], "messages[0].content", "must not be empty"),
        ([{"role": "assistant"}], "messages[0].content", "is required"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}],
            "messages[0].tool_calls[0].function",
            "is required",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
            "messages[0].content[0].type",
            "images are not supported; send text only",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "is required"),
        (
            [{"role": "tool", "content": "a"}],
            "messages[0].tool_call_id",
            "is required of role tool",
        ),
        (
            [{"role": "alien", "content": "a"}],
            "messages[0].role",
            "must be 'system', 'developer', 'user', 'assistant', 'tool' or 'function'",
        ),
        ([], "messages", "must not be empty"),
        ("hello", "messages", "must be a list"),
    ],
)
def test_a_message_of_a_chat_has_text(
    client: TestClient, config: Any, messages: Any, param: str, message: str
) -> None:
    asked = {"model": config.model.name, "messages": messages}
    answer = client.post("/v1/chat/completions", json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["message"]) == (400, param, f"{param}: {message}")


def test_what_is_too_long_has_one_code(client: TestClient, config: Any) -> None:
    for path, body in (
        ("/v1/completions", {"model": config.model.name, "prompt": "x" * CONTEXT}),
        ("/v1/batch/async", {"prompts": ["a", "x" * CONTEXT]}),
        ("/v1/batch/async", {"requests": [{"prompt": "x" * CONTEXT}]}),
        ("/v1/batch/async", {"requests": [{"prompt": "x" * 65, "kind": "embedding"}]}),
    ):
        error = client.post(path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded", error
