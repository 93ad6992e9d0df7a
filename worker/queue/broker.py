"""Ask Redis itself whether it answers, and how long a queue is."""

from redis import Redis


class Broker:
    """A Redis client that gives up after two seconds.

    Every method raises redis.RedisError when Redis does not answer.
    """

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)

    def ping(self) -> None:
        """Check that Redis answers."""
        self._redis.ping()

    def length(self, queue: str) -> int:
        """Return how many messages wait in a queue."""
        return int(self._redis.llen(queue))

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()
