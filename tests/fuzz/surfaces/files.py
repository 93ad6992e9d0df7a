"""Files on their way in: lines, gzip, forms, each in pieces of any size."""

import codecs
import gzip
import zlib
from functools import cache
from typing import Any

from api.errors import ApiError, BodyTooLargeError, InvalidInputError
from api.files.decoding import PIECE_BYTES, UTF_16, Gunzip, Utf8
from api.files.intake import Intake, IntakeLimits
from api.files.lines import LineChecker, LineSplitter, LineTooLongError, WrongLineError, read_line
from api.files.multipart import Event, Field, FilePiece, FileStart, MultipartReader
from api.files.translator import Translator
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.model import checkpoint, folder
from tests.fuzz.surfaces.samples import CHAT, COMPLETION, EMBEDDING, RESPONSE
from tests.fuzz.surfaces.storable import check_answer, check_error, check_request, check_text
from worker.store.requests.requests import NewRequest

MAX_LINE_BYTES = 3000
MAX_FILE_BYTES = 20_000
LIMITS = IntakeLimits(MAX_FILE_BYTES, MAX_LINE_BYTES, max_lines=20)
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/v1/embeddings": EMBEDDING}
BODIES |= {"/v1/responses": RESPONSE}
CODECS = ("unicode_escape", "utf-7", "utf-16", "punycode", "idna", "rot13", "zlib", "none")
PLAIN = "Content-Type: text/plain\r\n"
BOUNDARY = "--------7dbe1"


@cache
def _translator() -> Translator:
    return Translator(checkpoint(), max_prompt_bytes=2000)


def _line(chaos: Chaos, number: int) -> bytes:
    url = chaos.choice(list(BODIES))
    line: dict[str, Any] = {"custom_id": f"row-{number}", "method": "POST", "url": url}
    line["body"] = chaos.spoiled(BODIES[url])
    return chaos.damaged(chaos.spelled(chaos.spoiled(line, chaos.choice((0, 0, 1)))), chaos.choice((0, 0, 2)))


def _file(chaos: Chaos) -> bytes:
    lines = [_line(chaos, chaos.randrange(5)) for _ in range(chaos.choice((0, 1, 1, 2, 3)))]
    return chaos.choice((b"\n", b"\n", b"\r\n", b"\n\n", b"\r")).join(lines) + chaos.choice((b"", b"\n"))


def _split(pieces: list[bytes]) -> list[tuple[int, bytes | LineTooLongError]]:
    splitter = LineSplitter(MAX_LINE_BYTES)
    found = [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.close())
    assert splitter.offset >= sum(map(len, pieces))
    return found


def _said(found: list[tuple[int, bytes | LineTooLongError]]) -> list[tuple[int, str]]:
    return [(number, str(line)) for number, line in found]


def lines(chaos: Chaos) -> bool:
    """Find the lines of a file, the same ones however it is cut, and check each."""
    data = _file(chaos)
    found = _split(chaos.cut(data))
    assert _said(found) == _said(_split([data]))
    requests = []

    def translate(line: Any) -> NewRequest:
        request = _translator()(line)
        assert request.params is not None
        check_request(request, request.params)
        requests.append(request)
        return request

    checker = LineChecker(translate, max_lines=20)
    for number, line in found:
        checker.check(number, line)
    for error in checker.errors:
        check_answer(error.model_dump())
    assert len(requests) + len(checker.errors) == len(found)
    return bool(requests)


def gzipped(chaos: Chaos) -> bool:
    """Unpack what says that it is gzip, in pieces of bounded size."""
    data = b"".join(
        gzip.compress(chaos.choice((_file(chaos), b"\x00" * 300_000, b"")), chaos.choice((0, 1, 9)))
        for _ in range(chaos.choice((1, 1, 2)))
    )
    data = chaos.damaged(data, chaos.choice((0, 1, 3))) + b"\x00" * chaos.choice((0, 0, 9))
    unpacked = bytearray()
    gunzip = Gunzip()
    try:
        for piece in chaos.cut(data):
            for part in gunzip.feed(piece):
                assert len(part) <= PIECE_BYTES
                unpacked += part
        unpacked += gunzip.close()
    except InvalidInputError as error:
        check_error(error)
        return False
    padding = len(data) - len(data.rstrip(b"\x00"))
    assert any(bytes(unpacked) == _gunzip_all(data[: len(data) - cut]) for cut in range(padding + 1))
    return True


def texts(chaos: Chaos) -> bool:
    """Turn UTF-16 into UTF-8, the same however it is cut."""
    encoding = chaos.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-8", "utf-8-sig"))
    data = _file(chaos).decode(errors="replace").encode(encoding)
    if chaos.random() < 0.3:
        data = chaos.choice((codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE, b"")) + data
    data = chaos.damaged(data, chaos.choice((0, 0, 2)))
    found = _utf8(chaos.cut(data))
    assert found == _utf8([data])
    if found is not None and data[:2] in UTF_16:
        found.decode()
    return found is not None


def _utf8(pieces: list[bytes]) -> bytes | None:
    try:
        utf8 = Utf8()
        return b"".join([*map(utf8.feed, pieces), utf8.close()])
    except InvalidInputError as error:
        check_error(error)
        return None


def _gunzip_all(data: bytes) -> bytes | None:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return None


def _form(chaos: Chaos) -> bytes:
    fields = [
        ("purpose", None, b"batch"),
        ("expires_after[anchor]", None, b"created_at"),
        ("expires_after[seconds]", None, b"3600"),
        ("file", "lines.jsonl", None),
    ]
    body = b""
    for name, filename, value in fields[chaos.randrange(2) :]:
        spelled = chaos.choice((name, name, name, chaos.text()))
        disposition = f'form-data; name="{spelled}"'
        if filename is not None:
            disposition += chaos.choice(
                (
                    f'; filename="{filename}"',
                    f"; filename*=UTF-8''{filename}",
                    f"; filename*={chaos.choice(CODECS)}''%5Cud800%00{filename}",
                    f'; filename="{chaos.text()}"',
                    "",
                )
            )
        head = f"Content-Disposition: {disposition}\r\n{chaos.choice(('', PLAIN))}"
        content = (
            _file(chaos)[:500]
            if value is None
            else chaos.choice((value, value, chaos.text().encode(errors="replace")))
        )
        body += f"--{BOUNDARY}\r\n{head}\r\n".encode(errors="replace") + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def _events(content_type: str, pieces: list[bytes]) -> list[Event] | str:
    try:
        reader = MultipartReader(content_type)
        found: list[Event] = []
        for piece in pieces:
            for event in reader.feed(piece):
                if isinstance(event, FilePiece) and found and isinstance(found[-1], FilePiece):
                    found[-1] = FilePiece(found[-1].data + event.data)
                else:
                    found.append(event)
        reader.close()
    except InvalidInputError as error:
        check_error(error)
        return error.message
    return found


def multipart(chaos: Chaos) -> bool:
    """Read a form, the same one however it is cut."""
    given = f"multipart/form-data; boundary={BOUNDARY}"
    content_type = (
        given if chaos.random() < 0.9 else chaos.line_of((given, ";", "boundary=", "x", "multipart/"))
    )
    content_type = content_type.encode("latin-1", "ignore").decode("latin-1")  # as headers are read
    data = chaos.damaged(_form(chaos), chaos.choice((0, 0, 2)))
    found = _events(content_type, chaos.cut(data))
    if isinstance(found, str):
        return False
    assert found == _events(content_type, [data])
    for event in found:
        if isinstance(event, FileStart):
            check_text(event.name + event.filename)
        elif isinstance(event, Field):
            check_text(event.name + event.value)
    return True


def intake(chaos: Chaos) -> bool:
    """Take a whole file in, packed or not: what is kept is what came, within its limit."""
    data = _file(chaos)
    packed = chaos.random() < 0.4
    sent = chaos.damaged(gzip.compress(data, 1), chaos.choice((0, 0, 1))) if packed else data
    taken = Intake(folder() / "spool", LIMITS, _translator())
    try:
        for piece in chaos.cut(sent):
            for _ in taken.feed(piece):
                pass
        received = taken.finish()
        assert received.num_bytes <= MAX_FILE_BYTES
        assert received.num_bytes == received.path.stat().st_size
        assert received.num_lines <= LIMITS.max_lines
    except BodyTooLargeError:
        return False
    except ApiError as error:
        check_error(error)
        return False
    finally:
        taken.close()
    return True


def line_json(chaos: Chaos) -> bool:
    """Read a line that is hardly JSON."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/x", "body": chaos.value(4)}
    text = chaos.damaged(chaos.spelled(chaos.spoiled(line, chaos.randrange(2))), chaos.choice((0, 1, 4)))
    try:
        read_line(text)
    except WrongLineError as error:
        check_answer(error.at(1).model_dump())
        return False
    return True
