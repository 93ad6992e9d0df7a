"""Stream tokens from workers to waiting clients through Redis, which publishes and does not store them."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from redis import Redis, RedisError
from redis import asyncio as async_redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from worker.contract.feed import Message, channel, read_message
from worker.loops import Loop, start_task

logger = logging.getLogger(__name__)

TIMEOUTS: dict[str, Any] = {"socket_timeout": 2, "socket_connect_timeout": 2}
AT_ONCE = 256
IDLE_CHANNEL = "headrace:feed"  # always subscribed, so that the connection can wait for a message
SILENT_SECONDS = 5.0  # then Redis is pinged


class FeedWriter:
    """Publishes messages from its own thread, so that callers never wait for Redis."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, **TIMEOUTS)
        self._queue: SimpleQueue[tuple[str, Message] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._loop = Loop("feed", self._publish, self._closing, away=(RedisError,)).start()

    def tell(self, batch_id: str, message: Message) -> None:
        """Queue a message, to be published after those before it."""
        self._queue.put((batch_id, message))

    def close(self) -> None:
        """Publish the queued messages, end the thread and close the connection."""
        self._queue.put(None)
        self._loop.join()
        self._redis.close()

    def _publish(self) -> None:
        """Publish what waits; messages that Redis does not take are lost."""
        waiting = [self._queue.get()]
        with suppress(Empty):
            while len(waiting) < AT_ONCE:
                waiting.append(self._queue.get_nowait())
        if None in waiting:
            self._closing.set()
        with self._redis.pipeline(transaction=False) as pipeline:
            for told in filter(None, waiting):
                pipeline.publish(channel(told[0]), told[1].to_json())
            pipeline.execute()


class Feed:
    """Queue of the messages about one batch, from its opening on."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, message: Message) -> None:
        """Add a message."""
        self._told.put_nowait(message)

    async def next(self, seconds: float) -> Message | None:
        """Return the next message; None: none came within `seconds`, for instance because Redis is away."""
        try:
            async with asyncio.timeout(seconds):
                return await self._told.get()
        except TimeoutError:
            return None


class FeedReader:
    """Opens feeds for one event loop. They share one connection, so any number may be open."""

    def __init__(self, url: str) -> None:
        self._redis = async_redis.Redis.from_url(url, **TIMEOUTS, retry=Retry(NoBackoff(), 0))
        self._feeds: dict[str, Feed] = {}  # by channel
        self._listening: asyncio.Task[None] | None = None
        self._subscription: Any | None = None  # None: Redis does not answer
        self._was_tried = asyncio.Event()  # set once connecting was tried
        self._lock = asyncio.Lock()  # guards commands to Redis

    @property
    def is_there(self) -> bool:
        """Return whether messages arrive now."""
        return self._subscription is not None

    @asynccontextmanager
    async def open(self, batch_id: str) -> AsyncIterator[Feed]:
        """Open the feed of a batch that is about to be submitted, so that no message about it is missed."""
        name = channel(batch_id)
        self._feeds[name] = feed = Feed()
        try:
            if self._listening is None or self._listening.done():
                self._listening = start_task("feeds", self._listen, away=(RedisError, OSError))
            await self._was_tried.wait()
            await self._send("subscribe", name)
            yield feed
        finally:
            del self._feeds[name]
            await asyncio.shield(self._send("unsubscribe", name))

    async def close(self) -> None:
        """Close the connection."""
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening
        await self._redis.aclose()

    async def _send(self, command: str, name: str) -> None:
        with suppress(RedisError, OSError):  # `_listen` sees the error too, and subscribes to all feeds again
            async with self._lock:
                if self._subscription is not None:
                    await getattr(self._subscription, command)(name)

    async def _listen(self) -> None:
        subscription = self._redis.pubsub()
        try:
            await subscription.subscribe(IDLE_CHANNEL, *self._feeds)
            self._subscription = subscription
            self._was_tried.set()
            await self._pass_on(subscription)
        finally:
            self._subscription = None
            self._was_tried.set()
            with suppress(RedisError, OSError):
                await subscription.aclose()  # type: ignore[no-untyped-call]

    async def _pass_on(self, subscription: Any) -> None:
        is_asked = False
        while True:
            message = await subscription.get_message(timeout=SILENT_SECONDS)
            if message is None and is_asked:
                raise TimeoutError(f"silent for {2 * SILENT_SECONDS:g} s")
            if message is None:
                async with self._lock:
                    await subscription.ping()
            elif message["type"] == "message" and (feed := self._feeds.get(message["channel"].decode())):
                try:
                    feed.put(read_message(message["data"]))
                except (ValueError, TypeError, LookupError):
                    logger.warning("what was told on %s is no message of ours", message["channel"])
            is_asked = message is None
