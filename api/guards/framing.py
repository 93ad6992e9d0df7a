"""Refuses requests whose end two readers could see in different places, which could hide a second one."""

import re

import h11
from h11._receivebuffer import ReceiveBuffer

# A line that ends without a carriage return, or that continues on the next one.
LOOSE_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictConnection(h11.Connection):
    """Reads HTTP as h11 does, but refuses what a proxy in front may read differently (RFC 9112, 11.2)."""

    def __init__(self, our_role: type[h11.SERVER], max_incomplete_event_size: int) -> None:
        super().__init__(our_role, max_incomplete_event_size)
        self._receive_buffer = StrictBuffer()

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: the bytes are no HTTP, or state the length of the body in two ways.

        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")
        return event


class StrictBuffer(ReceiveBuffer):
    """Refuses headers whose lines end with a line feed alone, or are continued on the next line."""

    _extracted = bytearray()

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines up to a blank one, None until it arrives; raises h11.LocalProtocolError."""
        lines = super().maybe_extract_lines()
        extracted, self._extracted = self._extracted, bytearray()
        if lines is not None and LOOSE_LINE.search(extracted):
            raise h11.LocalProtocolError("a line of the headers does not end with CR LF, or is continued")
        return lines

    def _extract(self, count: int) -> bytearray:
        self._extracted = super()._extract(count)
        return self._extracted
