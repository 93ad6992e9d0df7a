"""Reads a form as it arrives: returns its fields, and passes the file's bytes to a sink."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from api.errors import ApiError, ClientGoneError, InvalidInputError
from api.files.decoding import Gunzip
from api.files.multipart import Field, FilePiece, FileStart, MultipartReader

# A refused body is read to its end if it has at most this many bytes; a longer one is cut off.
MAX_DRAINED_BYTES = 512 << 20

Sink = Callable[[bytes], Iterator[None]]
OpenSink = Callable[[Mapping[str, str]], Sink]


async def read_form(
    http_request: HttpRequest,
    *,
    file_field: str,
    open_sink: OpenSink,
    give_way: Callable[[], Awaitable[None]],
) -> dict[str, str]:
    """Return the fields of a form; the file's field holds the file's name.

    `open_sink` is called in a thread when the file begins, with the fields that came before it. Awaits
    `give_way` after each piece of the sink's work.

    A refused body is read to its end first, because a client that is still sending reads no answer.

    Raises:
        InvalidInputError: the body is no form, or does not hold exactly one file.
        ClientGoneError: the client went away before the end.
        StorageFullError: the file cannot be written.

    """
    pieces = _body(http_request)
    try:
        return await _read(
            http_request.headers.get("content-type", ""), pieces, file_field, open_sink, give_way
        )
    except ApiError:
        await _drain(http_request)
        raise
    except ClientDisconnect:
        raise ClientGoneError("The client disconnected before the end of the file.") from None


async def _read(
    content_type: str,
    pieces: AsyncIterator[bytes],
    file_field: str,
    open_sink: OpenSink,
    give_way: Callable[[], Awaitable[None]],
) -> dict[str, str]:
    reader = MultipartReader(content_type)
    fields: dict[str, str] = {}
    sink: Sink | None = None
    async for data in pieces:
        for event in reader.feed(data):
            if not isinstance(event, FilePiece):
                _add(fields, event, file_field)
                if isinstance(event, FileStart):
                    sink = await run_in_threadpool(open_sink, fields)
            elif sink is not None:
                for _ in sink(event.data):
                    await give_way()
    reader.close()
    if file_field not in fields:
        raise InvalidInputError(f"{file_field}: is required", param=file_field)
    return fields


def _add(fields: dict[str, str], event: Field | FileStart, file_field: str) -> None:
    if event.name in fields:
        raise InvalidInputError(f"{event.name}: is given twice", param=event.name)
    is_file = isinstance(event, FileStart)
    if is_file != (event.name == file_field):
        wanted = "be a file, with a filename" if event.name == file_field else "not be a file"
        raise InvalidInputError(f"{event.name}: must {wanted}", param=event.name)
    fields[event.name] = event.filename if isinstance(event, FileStart) else event.value


async def _drain(http_request: HttpRequest) -> None:
    drained = 0
    try:
        async for data in http_request.stream():
            drained += len(data)
            if drained > MAX_DRAINED_BYTES:
                return
    except (RuntimeError, ClientDisconnect):  # the body was read to its end, or the client is gone
        return


async def _body(http_request: HttpRequest) -> AsyncIterator[bytes]:
    encoding = http_request.headers.get("content-encoding", "identity").lower()
    if encoding not in {"identity", "gzip"}:
        raise InvalidInputError(
            f"content-encoding: must be gzip or absent, but is {encoding}", param="content-encoding"
        )
    gunzip = Gunzip() if encoding == "gzip" else None
    async for data in http_request.stream():
        if gunzip is None:
            yield data
            continue
        for piece in gunzip.feed(data):
            yield piece
    if gunzip is not None and (last := gunzip.close()):
        yield last
