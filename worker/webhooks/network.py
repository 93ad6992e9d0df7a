"""Connect to checked addresses only, and read no more than a little from them.

The host is resolved once, every address is checked, and the connection goes to one of those: a name
that resolves differently the second time gains nothing. TLS still verifies the host's name.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress

import httpcore

from worker.webhooks.targets import ForbiddenTargetError, Targets

# Everything a receiver sends, status line, headers and framing included.
MAX_RECEIVED_BYTES = 64 * 1024


class TooMuchReceivedError(Exception):
    """The receiver sent more than MAX_RECEIVED_BYTES, which is ample for any answer."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that `targets` accepts."""

    def __init__(self, targets: Targets, *, is_tls: bool) -> None:
        self._targets = targets
        self._is_tls = is_tls
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve the host, check all of its addresses, and connect to the first that answers."""
        addresses = await resolve(host, port)
        for address in addresses:
            self._targets.check_address(address, port, is_tls=self._is_tls)
        failure: Exception | None = None
        for address in addresses:
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return CappedStream(stream, MAX_RECEIVED_BYTES)
        raise failure or httpcore.ConnectError(f"the name {host} has no address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - httpcore's interface
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: a callback cannot be a socket file."""
        raise ForbiddenTargetError(f"a callback cannot be a socket file: {path}")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._network.sleep(seconds)


class CappedStream(httpcore.AsyncNetworkStream):
    """A stream from which at most `most` bytes can be read."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, most: int) -> None:
        self._stream = stream
        self._left = most

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Read the bytes that have come, up to the cap.

        Raises:
            TooMuchReceivedError: there is more.

        """
        # One byte over the cap: an answer of exactly that size is not too much.
        found = await self._stream.read(min(max_bytes, self._left + 1), timeout)
        self._left -= len(found)
        if self._left < 0:
            raise TooMuchReceivedError("the answer is too long")
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send the bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        """Return the stream inside TLS, with the same cap."""
        return CappedStream(
            await self._stream.start_tls(ssl_context, server_hostname, timeout), MAX_RECEIVED_BYTES
        )

    def get_extra_info(self, info: str) -> object:
        """Return information from the underlying stream."""
        return self._stream.get_extra_info(info)


async def resolve(host: str, port: int) -> list[str]:
    """Return every address of a host, each once, in the resolver's order.

    Uses a thread of its own: a loop that ends waits for its executor, however long a name server takes.

    Raises:
        httpcore.ConnectError: the name has no address.

    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str], error: Exception | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(httpcore.ConnectError(f"cannot resolve {host}: {error}"))

    def look_up() -> None:
        addresses, failure = [], None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, UnicodeError) as error:
            failure = error
        with suppress(RuntimeError):  # the attempt is over and its loop closed
            loop.call_soon_threadsafe(tell, addresses, failure)

    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    return await answer
