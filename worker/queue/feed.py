"""Tokens from a worker to whoever waits for them, by Redis: published and forgotten."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from redis import Redis, RedisError
from redis import asyncio as async_redis

from worker.contract.feed import Message, channel, read_message

logger = logging.getLogger(__name__)

TIMEOUTS: dict[str, Any] = {"socket_timeout": 2, "socket_connect_timeout": 2}
AT_ONCE = 256


class FeedWriter:
    """Publishes from a thread of its own, so that telling never waits for Redis."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, **TIMEOUTS)
        self._queue: SimpleQueue[tuple[str, Message] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def tell(self, batch_id: str, message: Message) -> None:
        """Have a message published soon, after those before it."""
        self._queue.put((batch_id, message))

    def close(self) -> None:
        """Publish what was told, and end."""
        self._queue.put(None)
        self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            waiting = [self._queue.get()]
            with suppress(Empty):
                while len(waiting) < AT_ONCE:
                    waiting.append(self._queue.get_nowait())
            is_open = None not in waiting
            try:
                with self._redis.pipeline(transaction=False) as pipeline:
                    for told in filter(None, waiting):
                        pipeline.publish(channel(told[0]), told[1].to_json())
                    pipeline.execute()
            except RedisError as error:
                logger.warning("Redis does not answer, so tokens are not told: %s", error)


class Feed:
    """What is told of one batch from now on."""

    def __init__(self, subscription: Any | None) -> None:
        self._subscription = subscription  # None: Redis does not answer

    async def next(self, seconds: float) -> Message | None:
        """Return the next message, or None when none came in time, as when Redis is away."""
        if self._subscription is not None:
            try:
                async with asyncio.timeout(seconds):
                    while True:
                        message = await self._subscription.get_message(
                            ignore_subscribe_messages=True, timeout=seconds
                        )
                        if message is not None:
                            return read_message(message["data"])
            except TimeoutError:
                return None
            except (RedisError, OSError) as error:
                logger.warning("the feed is lost: %s", error)
                self._subscription = None
        await asyncio.sleep(seconds)
        return None


class FeedReader:
    """Opens feeds, for one event loop."""

    def __init__(self, url: str) -> None:
        self._redis = async_redis.Redis.from_url(url, **TIMEOUTS)

    @asynccontextmanager
    async def open(self, batch_id: str) -> AsyncIterator[Feed]:
        """Listen to a batch that is about to be submitted, so that nothing told of it is missed."""
        subscription = self._redis.pubsub()
        try:
            try:
                await subscription.subscribe(channel(batch_id))
            except (RedisError, OSError) as error:
                logger.warning("Redis does not answer, so nothing is streamed: %s", error)
                yield Feed(None)
            else:
                yield Feed(subscription)
        finally:
            with suppress(RedisError, OSError):
                await subscription.aclose()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close every connection."""
        await self._redis.aclose()
