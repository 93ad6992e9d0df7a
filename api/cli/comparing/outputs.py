"""Reads the outputs of a configuration for a comparison: of a batch through the API, or of a file."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from api.cli.connection import Connection, RefusedError
from worker.quality.expected import Expected, ExpectedError

CUT_OFF = '{"error":'  # the last line begins so if the lines end early; no result does


class OutputsError(Exception):
    """A file does not hold outputs or references. The message names the line."""


@dataclass(slots=True)
class Requests:
    """What outputs are expected to be, and what was asked for, by the names of requests."""

    expected: dict[str, Expected] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Outputs:
    """Outputs by the names of their requests, with the requests, where these are known.

    The name is the custom_id, or else the position. A request that failed has None for an output.
    """

    outputs: dict[str, str | None] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)


@dataclass(frozen=True, slots=True)
class Sides:
    """The outputs of two configurations, by the names of requests, and the requests."""

    a: dict[str, str | None]
    b: dict[str, str | None]
    requests: Requests

    @classmethod
    def read(cls, api: Connection, a: str, b: str, requests: str | None) -> Self:
        """Read both sides as `read_outputs` does; the file `requests` replaces what they say of requests.

        Raises:
            OutputsError: also if they have no request in common.
            RefusedError: there is no such batch.

        """
        first, second = read_outputs(api, a), read_outputs(api, b)
        if not first.outputs.keys() & second.outputs.keys():
            raise OutputsError(
                f"{a} and {b} have no request in common: requests are paired by custom_id, or by position."
            )
        one, other = first.requests, second.requests
        known = Requests(one.expected | other.expected, one.questions | other.questions)
        return cls(first.outputs, second.outputs, known if requests is None else read_requests(requests))


def lines_of(api: Connection, path: str, **params: Any) -> Iterator[str]:
    """Yield the JSON lines of a route; raises RefusedError, also if they end early."""
    with api.stream(path, **params) as answer:
        for line in answer.iter_lines():
            if line.startswith(CUT_OFF):
                raise RefusedError(json.loads(line)["error"]["message"])
            yield line


def read_outputs(api: Connection, name: str) -> Outputs:
    """Return the outputs of a file of results, ours or in OpenAI's format, or else of the batch `name`.

    Raises:
        OutputsError: a line of the file is no result.
        RefusedError: there is no such batch.

    """
    path = Path(name)
    found = Outputs()
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            _read(found, name, file)
    else:
        _read(found, name, lines_of(api, f"/v1/batch/{name}/results", include="request"))
    return found


def read_requests(name: str) -> Requests:
    """Return the requests of a file, ours or in OpenAI's format; raises OutputsError, as above."""
    found = Requests()
    try:
        with Path(name).open(encoding="utf-8") as file:
            for place, (number, line) in enumerate(_objects(name, file)):
                body = line.get("body")
                asked = body if isinstance(body, dict) else line
                _add(found, _name(line, place), name, number, asked | {"expected": line.get("expected")})
    except OSError as error:
        raise OutputsError(f"{name} cannot be read: {error.strerror}.") from error
    return found


def _read(found: Outputs, name: str, lines: Iterable[str]) -> None:
    for place, (number, line) in enumerate(_objects(name, lines)):
        key = _name(line, place)
        if key in found.outputs:
            raise OutputsError(f"{name}, line {number}: an earlier line has the same custom_id {key!r}.")
        found.outputs[key] = _output(name, number, line)
        request = line.get("request")
        if isinstance(request, dict):
            _add(found.requests, key, name, number, request)


def _add(found: Requests, key: str, name: str, number: int, request: dict[str, Any]) -> None:
    if request.get("expected") is not None:
        found.expected[key] = _to_expected(name, number, request["expected"])
    asked = next((request[one] for one in ("prompt", "messages", "inputs") if request.get(one)), None)
    if asked is not None:
        found.questions[key] = asked if isinstance(asked, str) else json.dumps(asked, ensure_ascii=False)


def _objects(name: str, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OutputsError(f"{name}, line {number}: this is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise OutputsError(f"{name}, line {number}: a line must be a JSON object.")
        yield number, line


def _name(line: dict[str, Any], place: int) -> str:
    custom_id = line.get("custom_id")
    return str(line.get("index", place)) if custom_id is None else str(custom_id)


def _output(name: str, number: int, line: dict[str, Any]) -> str | None:
    if "response" in line:  # OpenAI's format
        try:
            response = line["response"]
            if response is None or response["status_code"] != 200:
                return None
            choice = response["body"]["choices"][0]
            output = choice["message"]["content"] if "message" in choice else choice["text"]
        except (LookupError, TypeError) as error:
            raise OutputsError(f"{name}, line {number}: this is no generation.") from error
    elif "output" in line:
        output = line["output"] if line.get("status", "completed") == "completed" else None
        message = line.get("message")
        if output is not None and isinstance(message, dict):  # without the reasoning before it
            output = message.get("content") or ""
    else:
        raise OutputsError(f"{name}, line {number}: a result has an `output` or a `response`.")
    if output is not None and not isinstance(output, str):
        raise OutputsError(f"{name}, line {number}: the output is no text.")
    return output


def _to_expected(name: str, number: int, given: Any) -> Expected:
    try:
        return Expected.from_json(given)
    except ExpectedError as error:
        raise OutputsError(f"{name}, line {number}: expected: {error}") from error
