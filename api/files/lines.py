"""Splits a batch's input file into lines, and reads and checks each of them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from api.errors import LineError
from api.inputs.schema import NonEmptyText
from api.wrong_fields import MAX_NAME_CHARACTERS, code_of, explain
from worker.contract.models import Model
from worker.quality.expected import Expected, ExpectedError
from worker.store.requests.requests import NewRequest

BOM = b"\xef\xbb\xbf"
FIELDS = frozenset({"custom_id", "method", "url", "body", "expected"})
MAX_ERRORS = 100  # wrong lines in one answer
MAX_MESSAGE_CHARACTERS = 500  # of the message about one
SPARE_BLANK_LINES = 4096  # that a file may have beyond one per request

# The path of an endpoint, perhaps after the address of a server, and perhaps with a slash at its end.
URL = re.compile(r"(?:https?://[^/?#\s]+)?(?:(?:/[^?#\s]*)?/v1)?(/[a-z_]+(?:/[a-z_]+)*)/?")
MAX_URL_CHARACTERS = 512

_custom_id = TypeAdapter(Annotated[NonEmptyText, Field(max_length=64)])


class WrongLineError(Exception):
    """A line of a file cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> LineError:
        """Return the error with its line number, as a client reads it."""
        message = self.message[:MAX_MESSAGE_CHARACTERS]
        return LineError(code=self.code, message=message, param=self.param, line=line)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file, whose body is not checked yet."""

    custom_id: str
    url: str
    body: dict[str, Any]
    expected: Expected | None = None


class LineSplitter:
    """Cuts a stream into lines, numbered from `first`. One over `max_bytes` becomes a LineTooLongError."""

    def __init__(self, max_bytes: int, *, first: int = 1) -> None:
        self._max_bytes = max_bytes
        self.offset = 0  # of the byte after the last line that was yielded or skipped
        self._rest = b""
        self._num_dropped = 0  # bytes dropped so far of a line that is too long
        self.number = first - 1  # of the last line
        self.num_blank = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, "bytes | LineTooLongError"]]:
        """Take some more bytes; yield the lines that they complete. Blank lines are only counted."""
        if not (self._rest or self._num_dropped or data.strip(b"\n")):  # a run of empty lines takes no time
            self.number += len(data)
            self.num_blank += len(data)
            self.offset += len(data)
            return
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = self._rest + whole[0]
            self._rest = rest
        else:
            self._rest += rest
        for line in whole:
            self.number += 1
            num_bytes = self._num_dropped + len(line)
            self._num_dropped = 0
            self.offset += num_bytes + 1
            if num_bytes > self._max_bytes:
                yield self.number, LineTooLongError(self._max_bytes)
            elif stripped := _stripped(line, self.number):
                yield self.number, stripped
            else:
                self.num_blank += 1
        if self._num_dropped + len(self._rest) > self._max_bytes:
            self._num_dropped += len(self._rest)
            self._rest = b""

    def close(self) -> Iterator[tuple[int, "bytes | LineTooLongError"]]:
        """Yield the last line, if no line feed ended it."""
        if self._rest or self._num_dropped:
            yield from self.feed(b"\n")


class LineTooLongError(WrongLineError):
    """A line is over the limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__("line_too_long", f"the line is longer than the limit of {max_bytes} bytes")


class RepeatedIdError(WrongLineError):
    """An earlier line has the same custom_id."""

    def __init__(self, custom_id: str) -> None:
        message = f"custom_id: an earlier line has the same custom_id {custom_id!r}"
        super().__init__("duplicate_custom_id", message, "custom_id")


def _stripped(line: bytes, number: int) -> bytes:
    return (line.removeprefix(BOM) if number == 1 else line).strip()


def read_line(text: bytes | LineTooLongError) -> Line:
    """Parse a line from a splitter, and check the fields that lines of every endpoint share.

    Raises:
        WrongLineError: the line is no request.

    """
    if isinstance(text, LineTooLongError):
        raise text
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        # The parser's line number is always 1, and would be taken for the line number in the file.
        raise WrongLineError(
            "invalid_json", f"the line is not valid JSON: {error}".replace(" at line 1 ", " at ")
        ) from error
    if not isinstance(value, dict):
        raise WrongLineError("invalid_json", "the line must be a JSON object")
    custom_id = value.get("custom_id")
    if custom_id is None:
        raise WrongLineError("missing_field", "custom_id: is required", "custom_id")
    try:
        _custom_id.validate_python(custom_id, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise WrongLineError(code_of(first), f"custom_id: {explain(first)}", "custom_id") from error
    method = value.get("method")
    if not isinstance(method, str) or method.upper() != "POST":
        raise WrongLineError("invalid_method", "method: must be 'POST'", "method")
    if not value.keys() <= FIELDS:
        param = min(value.keys() - FIELDS)[:MAX_NAME_CHARACTERS]
        raise WrongLineError("unknown_field", f"{param}: is not a known field; check its spelling", param)
    url, body = to_path(value.get("url")), value.get("body")
    if not isinstance(url, str):
        raise WrongLineError("invalid_url", "url: must be a path such as /v1/chat/completions", "url")
    if not isinstance(body, dict):
        raise WrongLineError("invalid_body", "body: must be an object", "body")
    return Line(custom_id, url, body, _to_expected(value.get("expected")))


def _to_expected(given: Any) -> Expected | None:
    try:
        return None if given is None else Expected.from_json(given)
    except ExpectedError as error:
        raise WrongLineError("invalid_value", f"expected: {error}", "expected") from error


def to_path(url: Any) -> Any:
    """Return the path that a url names, as this API spells it; anything else as it is.

    Files made for other servers have whole URLs, such as `https://api.openai.com/v1/embeddings`, and some
    leave `/v1` out.
    """
    return _to_path(url) if isinstance(url, str) and len(url) <= MAX_URL_CHARACTERS else url


# The lines of a file mostly name one.
@lru_cache(64)
def _to_path(url: str) -> str:
    match = URL.fullmatch(url)
    return url if match is None else f"/v1{match[1]}"


def custom_id_of(text: bytes | LineTooLongError) -> str | None:
    """Return the custom_id of a wrong line, if it has one."""
    try:
        custom_id = from_json(b"" if isinstance(text, LineTooLongError) else text)["custom_id"]
        return _custom_id.validate_python(custom_id, strict=True)
    except (ValueError, LookupError, TypeError):
        return None


@dataclass(slots=True)
class LineChecker:
    """Checks every line of a file in turn. Keeps the lines' custom_ids and urls, and nothing else of them."""

    translate: Callable[[Line], NewRequest]  # raises WrongLineError
    max_lines: int
    may_have_wrong_lines: bool = False  # they are only counted
    num_lines: int = 0
    num_wrong: int | None = field(init=False)  # None: no line may be wrong
    urls: set[str] = field(default_factory=set)
    models: dict[Model, None] = field(default_factory=dict)  # that they name, in their order
    errors: list[LineError] = field(default_factory=list)
    _custom_ids: set[bytes] = field(default_factory=set)  # bytes take less room than str

    def __post_init__(self) -> None:
        self.num_wrong = 0 if self.may_have_wrong_lines else None

    def check(self, number: int, text: bytes | LineTooLongError) -> bool:
        """Check a line and add its error to `errors`; return False if checking further is of no use."""
        if self.num_lines == self.max_lines:
            message = f"the file has more than the limit of {self.max_lines} requests"
            self.errors.append(LineError(code="too_many_lines", message=message, line=number))
            return False
        self.num_lines += 1
        try:
            self._check(text)
        except WrongLineError as error:
            if self.num_wrong is None:
                self.errors.append(error.at(number))
            else:
                self.num_wrong += 1
        return len(self.errors) < MAX_ERRORS

    def check_blank(self, number: int, num_blank: int) -> bool:
        """Check the number of blank lines up to this one; report as `check` does."""
        if num_blank <= self.num_lines + SPARE_BLANK_LINES:
            return True
        message = f"the file has {num_blank} blank lines; it may have {SPARE_BLANK_LINES} more than requests"
        self.errors.append(LineError(code="too_many_blank_lines", message=message, line=number))
        return False

    def _check(self, text: bytes | LineTooLongError) -> None:
        line = read_line(text)
        key = line.custom_id.encode()
        if key in self._custom_ids:
            raise RepeatedIdError(line.custom_id)
        self._custom_ids.add(key)
        model = self.translate(line).model
        if model is not None:
            self.models[model] = None
        self.urls.add(line.url)
