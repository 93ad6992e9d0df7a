"""Unpacks gzip, and turns UTF-16 into UTF-8, piece by piece: a file is never whole in memory."""

import codecs
import zlib
from collections.abc import Iterator

from api.errors import InvalidInputError

MAGIC = b"\x1f\x8b"
# How UTF-16 begins: with a byte order mark, or with the brace of an object.
UTF_16 = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"{\0": "utf-16-le",
    b"\0{": "utf-16-be",
}
HEAD_BYTES = 2  # that tell gzip and UTF-16 from UTF-8
PIECE_BYTES = 64 * 1024


class Gunzip:
    """Unpacks a gzip stream, of one member or several, and refuses one that is cut off or damaged."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._is_at_border = False  # a member has ended, and none has begun since

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Unpack some more bytes; yield the output in pieces."""
        try:
            while data:
                if self._is_at_border:
                    data = data.lstrip(b"\x00")  # padding
                    if data:
                        self._inflate, self._is_at_border = zlib.decompressobj(wbits=31), False
                elif piece := self._inflate.decompress(data, PIECE_BYTES):
                    yield piece
                    data = self._left()
                else:
                    data = self._left()
        except zlib.error as error:
            raise InvalidInputError(f"file: the gzip data is damaged: {error}", param="file") from error

    def _left(self) -> bytes:
        self._is_at_border = self._inflate.eof
        return self._inflate.unused_data if self._is_at_border else self._inflate.unconsumed_tail

    def close(self) -> bytes:
        """End the stream; return its last bytes.

        Raises:
            InvalidInputError: the stream is cut off.

        """
        last = self._inflate.flush()
        if not (self._is_at_border or self._inflate.eof):
            raise InvalidInputError("file: the gzip data ends too early", param="file")
        return last


class Utf8:
    """Turns text into UTF-8: UTF-16 if it begins so, and anything else is taken for UTF-8 already."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, data: bytes) -> bytes:
        """Take some more bytes; return those of them that are certain, in UTF-8."""
        if self._head is not None:
            self._head += data
            if len(self._head) < HEAD_BYTES:
                return b""
            data, self._head = self._head, None
            if encoding := UTF_16.get(data[:HEAD_BYTES]):
                self._decoder = codecs.getincrementaldecoder(encoding)()
        return data if self._decoder is None else self._decode(self._decoder, data)

    def close(self) -> bytes:
        """End the text; return its last bytes.

        Raises:
            InvalidInputError: the text is cut off within a character.

        """
        if self._decoder is not None:
            return self._decode(self._decoder, b"", final=True)
        return self._head or b""

    @staticmethod
    def _decode(decoder: codecs.IncrementalDecoder, data: bytes, *, final: bool = False) -> bytes:
        try:
            return decoder.decode(data, final).encode()
        except UnicodeError as error:
            raise InvalidInputError(f"file: is not valid UTF-16: {error}", param="file") from error
