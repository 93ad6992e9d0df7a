"""Gzip undone piece by piece: a small body that unpacks to a huge one never is in memory at once."""

import zlib
from collections.abc import Iterator

from api.errors import InvalidInputError

MAGIC = b"\x1f\x8b"
PIECE_BYTES = 64 * 1024


class Gunzip:
    """Unpacks a gzip stream, of one member or several, and refuses one that is cut off or damaged."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what some more bytes unpack to, in pieces."""
        try:
            while data:
                if self._inflate.eof:
                    data = b"" if not data.strip(b"\x00") else data
                    self._inflate = zlib.decompressobj(wbits=31)
                    self._has_begun = False
                    continue
                self._has_begun = True
                if piece := self._inflate.decompress(data, PIECE_BYTES):
                    yield piece
                data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        except zlib.error as error:
            raise InvalidInputError(f"file: damaged gzip: {error}", param="file") from error

    def close(self) -> bytes:
        """Say that the stream has ended; return the last of it.

        Raises:
            InvalidInputError: it should not have ended.

        """
        last = self._inflate.flush()
        if self._has_begun and not self._inflate.eof:
            raise InvalidInputError("file: the gzip stream is cut off", param="file")
        return last
