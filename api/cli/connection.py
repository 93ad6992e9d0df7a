"""Calls the API for the command line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import typer

TIMEOUT_SECONDS = 120.0  # a large batch is checked and stored before it is accepted


class RefusedError(Exception):
    """The API answered with an error. The message is for people; `code` is the error's, if it has one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Connection:
    """The URL of the API, and the key to call it with."""

    url: str
    api_key: str | None

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call the API and return its JSON answer.

        Raises:
            RefusedError: the API refuses the call.
            httpx.TransportError: the API does not answer.

        """
        with self._client() as client:
            answer = client.request(method, path, **options)
            _check(answer)
            return answer.json()

    @contextmanager
    def stream(self, path: str, **params: Any) -> Iterator[httpx.Response]:
        """Yield an answer to read while it arrives; raises as `call` does."""
        with (
            self._client() as client,
            client.stream(
                "GET", path, params=params, headers={"accept": "application/x-ndjson"}, timeout=None
            ) as answer,
        ):
            if answer.is_error:
                answer.read()
            _check(answer)
            yield answer

    def _client(self) -> httpx.Client:
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS)


def told(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the errors of a file's lines as text, one per line."""
    return "\n".join((f"line {one['line']}: " if one["line"] else "") + one["message"] for one in lines)


def connection(context: typer.Context) -> Connection:
    """Return the connection from a command's context."""
    found: Connection = context.obj
    return found


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    code = None
    try:
        error = answer.json()["error"]
        message, code = str(error["message"]), error["code"]
        if lines := error.get("lines"):
            message = told(lines)
    except (ValueError, LookupError, TypeError):
        message = f"{answer.request.url} answered {answer.status_code}, which is no answer of Headrace's"
    if retry_after := answer.headers.get("retry-after"):
        message += f" (try again in {retry_after} s)"
    raise RefusedError(message, code)
