"""Unpacks gzip piece by piece, so that a small body that unpacks to a huge one never fills the memory."""

import zlib
from collections.abc import Iterator

from api.errors import InvalidInputError

MAGIC = b"\x1f\x8b"
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
