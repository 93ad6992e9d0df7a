"""Calls the API for the command line."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import typer

TIMEOUT_SECONDS = 120.0  # a large batch is checked and stored before it is accepted


class RefusedError(Exception):
    """The API answered with an error. The message is for people; `code` and `param` are the error's."""

    def __init__(
        self, message: str, *, status: int = 0, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Connection:
    """The URL of the API, and the key to call it with."""

    url: str
    api_key: str | None
    timeout_seconds: float = TIMEOUT_SECONDS

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Call the API and return its JSON answer, None if the answer has no body.

        Raises:
            RefusedError: the API refuses the call.
            httpx.TransportError: the API does not answer.

        """
        with self._client() as client:
            answer = client.request(method, path, **options)
            _check(answer)
            return answer.json() if answer.content else None

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
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=self.timeout_seconds, verify=_trusted()
        )


@cache
def _trusted() -> ssl.SSLContext:
    """Return whom to trust; it takes as long to make as many calls."""
    return httpx.create_ssl_context()


def address(url: str | None, port: int | None) -> str:
    """Return the address of the API: the given one, or that of this machine."""
    return url or f"http://127.0.0.1:{port or 8000}"


def given(**values: Any) -> dict[str, Any]:
    """Return the options that were given, without those that are None."""
    return {name: value for name, value in values.items() if value is not None}


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
    code = param = None
    try:
        error = answer.json()["error"]
        message, code, param = str(error["message"]), error["code"], error["param"]
        if lines := error.get("lines"):
            message = told(lines)
    except (ValueError, LookupError, TypeError):
        message = (
            f"{answer.request.url} answered {answer.status_code}, but not as Headrace does. Check that"
            " HEADRACE_URL is the address of a Headrace API."
        )
    if retry_after := answer.headers.get("retry-after"):
        message += f" (try again in {retry_after} s)"
    raise RefusedError(message, status=answer.status_code, code=code, param=param)
