"""The lines of a batch's input file: found in a stream, read, and checked one by one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from api.errors import ApiError, LineError, field_path
from api.schema import NonEmptyText

T = TypeVar("T")

BOM = b"\xef\xbb\xbf"
MAX_ERRORS = 20  # wrong lines that are told at once

_custom_id = TypeAdapter(Annotated[NonEmptyText, Field(max_length=64)])
_method = TypeAdapter(Literal["POST"])


class WrongLineError(Exception):
    """A line that cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> LineError:
        """Return it as a client reads it."""
        return LineError(code=self.code, message=self.message, param=self.param, line=line)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file, its body unchecked."""

    custom_id: str
    url: str
    body: dict[str, Any]


class LineSplitter:
    """Cuts a stream into lines, numbered from 1; none may be longer than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._number = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that some more bytes complete; blank ones only count.

        Raises:
            WrongLineError: a line is too long; `number` is its number.

        """
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = self._rest + whole[0]
            self._rest = rest
        else:
            self._rest += rest
        for line in whole:
            self._number += 1
            self._check(line)
            if stripped := _stripped(line, self._number):
                yield self._number, stripped
        self._check(self._rest, is_next=True)

    def close(self) -> Iterator[tuple[int, bytes]]:
        """Yield the last line, if no line feed ended it."""
        if self._rest:
            yield from self.feed(b"\n")

    def _check(self, line: bytes, *, is_next: bool = False) -> None:
        if len(line) > self._max_bytes:
            raise LineTooLongError(self._number + is_next, self._max_bytes)


class LineTooLongError(WrongLineError):
    """A line over the limit: whatever follows is not looked at."""

    def __init__(self, number: int, max_bytes: int) -> None:
        super().__init__("line_too_long", f"longer than {max_bytes} bytes")
        self.number = number


def _stripped(line: bytes, number: int) -> bytes:
    return (line.removeprefix(BOM) if number == 1 else line).strip()


def read_line(text: bytes) -> Line:
    """Read a line and check what lines of every endpoint share.

    Raises:
        WrongLineError: it is no request.

    """
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise WrongLineError("invalid_json", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WrongLineError("invalid_json", "not a JSON object")
    try:
        custom_id = _custom_id.validate_python(value.get("custom_id"), strict=True)
        _method.validate_python(value.get("method"))
    except ValidationError as error:
        param = "method" if error.title.startswith("literal") else "custom_id"
        if param not in value:
            raise WrongLineError("missing_field", f"{param}: required", param) from error
        raise_first(error, param)
    if unknown := value.keys() - {"custom_id", "method", "url", "body"}:
        param = min(unknown)
        raise WrongLineError("unknown_field", f"{param}: unknown field", param)
    url, body = value.get("url"), value.get("body")
    if not isinstance(url, str):
        raise WrongLineError("invalid_url", "url: must be a path such as /v1/chat/completions", "url")
    if not isinstance(body, dict):
        raise WrongLineError("invalid_body", "body: must be an object", "body")
    if body.get("stream"):
        raise WrongLineError("stream_refused", "body.stream: a batch has no streams", "body.stream")
    return Line(custom_id, url, body)


def raise_first(error: ValidationError, prefix: str) -> NoReturn:
    """Raise WrongLineError for the first thing pydantic found wrong."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = field_path(["", prefix, *first["loc"]][1:]) or prefix
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field"
    raise WrongLineError(first["type"], f"{path}: {message}", path) from error


@dataclass(slots=True)
class LineChecker:
    """Checks every line of a file as it passes by. Holds the custom_ids, and nothing else of the lines."""

    checks: Mapping[str, Callable[[dict[str, Any]], object]]  # endpoint -> check of a body; raises ApiError
    max_lines: int
    num_lines: int = 0
    urls: set[str] = field(default_factory=set)
    errors: list[LineError] = field(default_factory=list)
    _custom_ids: set[bytes] = field(default_factory=set)  # bytes take less room than str

    def check(self, number: int, text: bytes) -> None:
        """Check a line; what is wrong is noted in `errors`, up to MAX_ERRORS of them."""
        if len(self.errors) >= MAX_ERRORS:
            return
        try:
            self._check(text)
        except WrongLineError as error:
            self.errors.append(error.at(number))

    def _check(self, text: bytes) -> None:
        self.num_lines += 1
        if self.num_lines > self.max_lines:
            raise WrongLineError("too_many_lines", f"a file may have at most {self.max_lines} requests")
        line = read_line(text)
        key = line.custom_id.encode()
        if key in self._custom_ids:
            raise WrongLineError(
                "duplicate_custom_id", f"custom_id: {line.custom_id!r} was used before", "custom_id"
            )
        self._custom_ids.add(key)
        self.urls.add(line.url)
        check_body(line, self.checks)


def check_body(line: Line, checks: Mapping[str, Callable[[dict[str, Any]], T]]) -> T:
    """Check a line's body by its endpoint; return what the check makes of it.

    Raises:
        WrongLineError: there is no such endpoint, or it would refuse the body.

    """
    check = checks.get(line.url)
    if check is None:
        raise WrongLineError("invalid_url", f"url: must be one of {', '.join(sorted(checks))}", "url")
    try:
        return check(line.body)
    except ValidationError as error:
        raise_first(error, "body")
    except ApiError as error:
        path = f"body.{error.param}" if error.param else "body"
        message = error.message.removeprefix(f"{error.param}: ")
        raise WrongLineError(error.code or "invalid_body", f"{path}: {message}", path) from error
