"""Raw HTTP requests of every kind of malice: what is in them is spoiled, what is around them is, or both."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from tests.fixtures.deployment import eventually
from tests.fuzz.chaos import Chaos, nested
from tests.fuzz.surfaces import files, samples
from tests.fuzz.target import Target
from tests.fuzz.words import ACTIONS, CONTENT_TYPES, HEADERS, JSON_ROUTES, METHODS, READ_ROUTES, VALUES


@dataclass(frozen=True, slots=True)
class Sent:
    """What goes over the wire. `is_cut_off`: no more will come, though more is announced."""

    kind: str
    data: bytes
    is_cut_off: bool = False


Ids = Mapping[str, list[str]]


def prepare(shot: Target) -> dict[str, list[str]]:
    """Make one of everything that has an id, so that routes find something."""
    client = shot.running.client
    made: dict[str, list[str]] = {"batch": [], "file": [], "upload": [], "endpoint": [], "event": ["evt_0"]}
    made |= {"response": [], "messages": [], "experiment": []}
    for _ in range(3):
        made["experiment"].append(_experiment(shot))
        made["batch"].append(shot.running.submit(prompts=["quick", "brown"], max_tokens=3))
        lines = b"".join(
            json.dumps(
                {
                    "custom_id": str(i),
                    "method": "POST",
                    "url": "/v1/embeddings",
                    "body": {"model": "model", "input": "fox"},
                }
            ).encode()
            + b"\n"
            for i in range(3)
        )
        form = {"files": {"file": ("a.jsonl", lines)}, "data": {"purpose": "batch"}}
        made["file"].append(client.post("/v1/files", **form).raise_for_status().json()["id"])
        made["upload"].append(client.post("/v1/uploads", json=samples.UPLOAD).raise_for_status().json()["id"])
        for name, path, body in (
            ("response", "/v1/responses", {"model": "model", "input": "fox", "background": True}),
            ("messages", "/v1/messages/batches", JSON_ROUTES["/v1/messages/batches"]),
        ):
            made[name].append(client.post(path, json=body).raise_for_status().json()["id"])
        made["endpoint"].append(
            client.post("/v1/webhooks/endpoints", json={"url": "http://127.0.0.1:9/x", "enabled": False})
            .raise_for_status()
            .json()["id"]
        )
    return made


def _experiment(shot: Target) -> str:
    """Start an experiment on a batch that begins in a moment."""
    client = shot.running.client

    def accepted() -> httpx.Response | None:
        batch_id = shot.running.submit(prompts=["quick", "brown"], max_tokens=3, start_after=5)
        body = {"batch_id": batch_id, "model": "other", "share": 1}
        answer = client.post("/v1/experiments", json=body)
        return answer if answer.is_success else None

    return str(eventually(accepted, what="a worker of the other model").json()["experiment_id"])


def make(chaos: Chaos, key: str, ids: Ids) -> Sent:
    """Return one request."""
    kind, build = chaos.choice(KINDS)
    data = build(chaos, key, ids)
    cut = chaos.random() < 0.08
    if cut:
        data = data[: chaos.randrange(len(data) + 1)]
    announces_more = kind in {"lengths", "damaged", "requests"} or b"transfer-encoding" in data.lower()
    return Sent(kind, data, is_cut_off=cut or announces_more)


def _path(chaos: Chaos, template: str, ids: Ids) -> str:
    for name, known in ids.items():
        if "{" + name + "}" in template:
            one = (
                chaos.choice(known)
                if chaos.random() < 0.7
                else quote(chaos.text().encode(errors="replace"), safe="%/.")
            )
            template = template.replace("{" + name + "}", one)
    return template


def _head(method: str, path: str, key: str, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {key}",
        "connection: close",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"


def _post(path: str, key: str, body: bytes, content_type: str = "application/json", **more: str) -> bytes:
    headers = {"content-type": content_type, "content-length": str(len(body)), **more}
    return _head("POST", path, key, headers) + body


def _json_body(chaos: Chaos, valid: dict[str, Any], ids: Ids) -> bytes:
    share = chaos.random()
    # Outputs stay short: what is thrown at is the door.
    needed = (
        "max_tokens",
        "prompt",
        "prompts",
        "requests",
        "model",
        "messages",
        "input",
        "url",
        "input_file_id",
        "endpoint",
        "purpose",
        "batch_id",
    )
    some = {name: value for name, value in valid.items() if name in needed or chaos.random() < share}
    for name, kind in (("input_file_id", "file"), ("batch_id", "batch")):
        if name in some:
            some[name] = chaos.choice(ids[kind])
    return chaos.spelled(chaos.spoiled(some))


def _spoiled_json(chaos: Chaos, key: str, ids: Ids) -> bytes:
    template, valid = chaos.choice(list(JSON_ROUTES.items()))
    return _post(_path(chaos, template, ids), key, _json_body(chaos, valid, ids))


def _malformed_json(chaos: Chaos, key: str, ids: Ids) -> bytes:
    template, valid = chaos.choice(list(JSON_ROUTES.items()))
    body = chaos.damaged(_json_body(chaos, valid, ids), 5)
    if chaos.random() < 0.2:
        body = json.dumps({**valid, "metadata": nested(chaos.choice((200, 900)))}).encode()
    if chaos.random() < 0.1:
        body = chaos.choice(
            (
                b"[" * 50_000,
                b'{"a":' * 20_000,
                b"9" * 100_000,
                b'"' + b"\\u0000" * 9000 + b'"',
                b"\x00" * 1000,
            )
        )
    return _post(_path(chaos, template, ids), key, body)


def _wrong_types(chaos: Chaos, key: str, ids: Ids) -> bytes:
    template, valid = chaos.choice(list(JSON_ROUTES.items()))
    return _post(_path(chaos, template, ids), key, _json_body(chaos, valid, ids), chaos.choice(CONTENT_TYPES))


def _queries(chaos: Chaos, key: str, ids: Ids) -> bytes:
    template, names = chaos.choice(list(READ_ROUTES.items()))
    path = _path(chaos, template, ids)
    pairs = []
    for name in names:
        if chaos.random() < 0.6:
            value = str(chaos.choice((chaos.scalar, chaos.text, lambda: chaos.choice(ids["batch"])))())[:5000]
            pairs.append(f"{name}={quote(value.encode(errors='surrogatepass'))}")
    if chaos.random() < 0.2:
        pairs += [chaos.choice(("limit=1&limit=2", "%00=%00", "&&&==", "after=%ff%fe", "x" * 3000, "[]=1"))]
    return _head("GET", path + ("?" + "&".join(pairs) if pairs else ""), key, {})


def _acts(chaos: Chaos, key: str, ids: Ids) -> bytes:
    method, template = chaos.choice(ACTIONS)
    if method == "DELETE" and chaos.random() < 0.9:  # so that the others still find something
        ids = {name: ["none"] for name in ids}
    return _head(method, _path(chaos, template, ids), key, {"content-length": "0"})


def _uploads(chaos: Chaos, key: str, ids: Ids) -> bytes:
    form = files._form(chaos)
    path = _path(chaos, chaos.choice(("/v1/files", "/v1/uploads/{upload}/parts")), ids)
    if path != "/v1/files":
        form = form.replace(b'name="file"', b'name="data"')
    body = chaos.damaged(form, chaos.choice((0, 1, 3)))
    more = {}
    if chaos.random() < 0.2:
        body, more = (
            chaos.damaged(gzip.compress(body + b"\x00" * 10**6, 1), chaos.choice((0, 1))),
            {"content-encoding": "gzip"},
        )
    content_type = f"multipart/form-data; boundary={files.BOUNDARY}"
    return _post(path, key, body, chaos.choice((content_type,) * 9 + CONTENT_TYPES[:1]), **more)


def _odd_headers(chaos: Chaos, key: str, ids: Ids) -> bytes:
    method, path = chaos.choice(
        (("GET", "/v1/batch"), ("POST", "/v1/batch/async"), ("GET", "/v1/files/{file}/content"))
    )
    body = json.dumps({"prompts": ["fox"], "max_tokens": 1}).encode() if method == "POST" else b""
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    for _ in range(chaos.randrange(1, 4)):
        name = chaos.choice(HEADERS) if chaos.random() < 0.9 else chaos.text()
        headers[name] = chaos.choice(VALUES) if chaos.random() < 0.8 else chaos.text()
    if chaos.random() < 0.05:
        headers |= {f"x-{i}": "y" for i in range(chaos.choice((100, 2000)))}
    return _head(method, _path(chaos, path, ids), key, headers) + body


def _odd_requests(chaos: Chaos, key: str, ids: Ids) -> bytes:
    path = chaos.choice(
        (
            *READ_ROUTES,
            *JSON_ROUTES,
            "*",
            "",
            "//",
            "/../..",
            "/%2e%2e/",
            "/v1/../metrics",
            "http://evil.example/v1/batch",
            "/" + "a" * 40_000,
            "/\xff",
            "/%",
            "/%zz",
            "/v1/batch/%00",
            "/docs",
            "/openapi.json",
            "/v1/batch/a%2Fb",
            "/;x=1",
            "/?" + "&" * 3000,
        )
    )
    version = chaos.choice(
        ("HTTP/1.1",) * 5 + ("HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "", "FOO/1.1", "HTTP/1.1 x")
    )
    line = f"{chaos.choice(METHODS)} {_path(chaos, path, ids)} {version}"
    end = chaos.choice(("\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n\r\n"))
    rest = f"host: localhost{end}authorization: Bearer {key}{end}connection: close{end}{end}"
    return (line + end + rest).encode("latin-1", "replace")


def _wrong_lengths(chaos: Chaos, key: str, _: Ids) -> bytes:
    body = json.dumps({"prompts": ["fox"], "max_tokens": 1}).encode()
    kind = chaos.randrange(5)
    length = str(len(body) + chaos.choice((-5, 5, 1000, 10**12)))
    if kind == 0:
        return (
            _head(
                "POST", "/v1/batch/async", key, {"content-type": "application/json", "content-length": length}
            )
            + body
        )
    if kind == 1:
        lengths = {
            "content-type": "application/json",
            "content-length": length,
            "Content-Length": str(len(body)),
        }
        return _head("POST", "/v1/batch/async", key, lengths) + body
    sizes = (f"{len(body):x}", f"{len(body):x};ext=1", "-1", "ffffffffffffffff", "zz", "", "0")
    chunked = (
        chaos.choice(sizes).encode()
        + b"\r\n"
        + body
        + b"\r\n"
        + chaos.choice((b"0\r\n\r\n", b"0\r\n", b"", b"5\r\nab"))
    )
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    if kind == 2:
        headers["content-length"] = length
    return _head("POST", "/v1/batch/async", key, headers) + chunked


def _damaged(chaos: Chaos, key: str, ids: Ids) -> bytes:
    build = chaos.choice((_spoiled_json, _queries, _uploads, _odd_headers, _acts))
    return chaos.damaged(build(chaos, key, ids), 4)


Build = Callable[[Chaos, str, Ids], bytes]
KINDS: tuple[tuple[str, Build], ...] = (
    ("spoiled JSON", _spoiled_json),
    ("spoiled JSON", _spoiled_json),
    ("malformed JSON", _malformed_json),
    ("content types", _wrong_types),
    ("queries", _queries),
    ("acts", _acts),
    ("forms", _uploads),
    ("headers", _odd_headers),
    ("requests", _odd_requests),
    ("lengths", _wrong_lengths),
    ("damaged", _damaged),
)
