"""A TCP address that leads to another, until it is told to reset or to stop forwarding."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

LINGER_NOT = struct.pack("ii", 1, 0)  # close sends a reset
COMMIT = b"COMMIT"  # as psycopg writes it


@dataclass(slots=True)
class Link:
    """One process's way to one server."""

    loop: asyncio.AbstractEventLoop
    target: int
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _num_to_cut: int = 0  # commits

    async def open(self) -> None:
        """Listen on a free port."""
        self._flows.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Connect nobody any more, and reset those that are connected."""
        if self._server is not None:
            self._server.close()
        self._reset()

    def reset(self) -> None:
        """Reset every connection there is; new ones pass."""
        self.loop.call_soon_threadsafe(self._reset)

    def stall(self) -> None:
        """Forward nothing, in silence, and connect nobody to the other side."""
        self.loop.call_soon_threadsafe(self._flows.clear)

    def cut_commits(self, count: int) -> None:
        """Pass on the next commits and reset the connection before any answer to them."""
        self._num_to_cut = count

    @property
    def is_cutting(self) -> bool:
        """Whether there is a commit yet to be cut off."""
        return self._num_to_cut > 0

    def heal(self) -> None:
        """Forward again, first what has waited."""
        self.loop.call_soon_threadsafe(self._flows.set)

    def _reset(self) -> None:
        for writer in [one for one in self._writers if not one.is_closing()]:
            _abort(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Up to Python 3.11 a server writes a traceback for each connection that is cancelled.
        with contextlib.suppress(asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._flows.wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(other_writer)
        await asyncio.gather(self._pump(reader, other_writer, writer), self._pump(other_reader, writer))
        self._writers -= {writer, other_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter | None = None,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                if client is not None and self._num_to_cut > 0 and COMMIT in data:
                    self._num_to_cut -= 1
                    _abort(client)
                await writer.drain()
        writer.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    writer.transport.abort()


class Links:
    """A thread that forwards for every link."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def to(self, port: int) -> Link:
        """Return a new link to a port of this machine."""
        link = Link(self._loop, port)
        self._links.append(link)
        asyncio.run_coroutine_threadsafe(link.open(), self._loop).result()
        return link

    @contextlib.contextmanager
    def running(self) -> Iterator["Links"]:
        """Forward until the end of the block."""
        self._thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(_close(self._links), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _close(links: Sequence[Link]) -> None:
    for link in links:
        link.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
