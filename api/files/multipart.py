"""Parses a multipart/form-data body as it arrives: fields whole, the file in pieces, never buffered."""

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from api.errors import InvalidInputError

MAX_FIELD_BYTES = 1024
MAX_FIELDS = 16


@dataclass(frozen=True, slots=True)
class Field:
    """A form field that has arrived whole."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FileStart:
    """The start of a file, to which the next pieces belong."""

    name: str
    filename: str


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Some bytes of the file."""

    data: bytes


Event = Field | FileStart | FilePiece


class MultipartReader:
    """Turns the bytes of a body into events.

    Raises:
        InvalidInputError: the body is not multipart/form-data, or a field is too long.

    """

    def __init__(self, content_type: str) -> None:
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_param("boundary")
        if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
            raise InvalidInputError("The body must be multipart/form-data with a boundary.", param="body")
        self._events: list[Event] = []
        self._disposition = b""
        self._header_name = b""
        self._header_value = b""
        self._field: tuple[str, bytearray] | None = None
        self._num_fields = 0
        self._is_over = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begin,
                    "on_header_field": self._on_header_name,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidInputError(f"The body cannot be read: {error}", param="body") from error

    def feed(self, data: bytes) -> Iterator[Event]:
        """Parse some more of the body; return its events."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidInputError(
                f"The body is not valid multipart/form-data: {error}", param="body"
            ) from error
        events, self._events = self._events, []
        return iter(events)

    def close(self) -> None:
        """End the body; raises InvalidInputError if it is cut off."""
        if not self._is_over:
            raise InvalidInputError("The body ends before its last boundary.", param="body")

    def _part_begin(self) -> None:
        self._disposition = b""
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise InvalidInputError(f"The form has more than {MAX_FIELDS} fields.", param="body")

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _headers_finished(self) -> None:
        header = Message()
        header["content-disposition"] = self._disposition.decode("utf-8", "replace")
        try:
            name = header.get_param("name", header="content-disposition")
            filename = header.get_filename()
        except (ValueError, LookupError) as error:  # from a codec that the sender names
            raise InvalidInputError(
                f"The Content-Disposition of a part cannot be read: {error}", param="body"
            ) from error
        if not isinstance(name, str):
            raise InvalidInputError("A part of the form has no name.", param="body")
        if filename is None:
            self._field = _storable(name), bytearray()
        else:
            self._field = None
            self._events.append(FileStart(_storable(name), _storable(filename)[-255:]))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._events.append(FilePiece(data[start:end]))
            return
        name, value = self._field
        value += data[start:end]
        if len(value) > MAX_FIELD_BYTES:
            raise InvalidInputError(f"{name}: is longer than {MAX_FIELD_BYTES} bytes", param=name)

    def _part_end(self) -> None:
        if self._field is not None:
            name, value = self._field
            self._events.append(Field(name, _storable(value.decode("utf-8", "replace"))))
            self._field = None

    def _end(self) -> None:
        self._is_over = True


def _storable(text: str) -> str:
    # RFC 2231 lets the sender name any of Python's codecs, and some of them produce lone surrogates.
    return text.replace("\x00", "").encode("utf-8", "replace").decode()
