"""One attempt at delivering a webhook over HTTP.

The host is resolved here, every address is checked, and the connection goes to a checked one: a
name that answers differently the second time gains nothing. Redirects and proxies are not followed.
"""

import asyncio
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpcore
import httpx

from worker.webhooks.signing import sign
from worker.webhooks.targets import ForbiddenTargetError, IPNetwork, check_address, check_url

MAX_ANSWER_BYTES = 16 * 1024
USER_AGENT = "headrace-webhooks/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said, or why it was not heard."""

    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    retry_after: float | None = None

    @property
    def is_delivered(self) -> bool:
        """Only 2xx is success; a redirect is not."""
        return self.status_code is not None and 200 <= self.status_code < 300


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that passed `check_address`. TLS still verifies the host's name."""

    def __init__(self, allowed: Sequence[IPNetwork]) -> None:
        self._allowed = allowed
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve the host, demand that all of its addresses pass, connect to the first."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"cannot resolve {host}: {error}") from error
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            check_address(address, self._allowed)
        return await self._network.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no callback is a file."""
        raise ForbiddenTargetError(f"a callback cannot be a socket file: {path}, {timeout}, {socket_options}")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._network.sleep(seconds)


def checked_transport(allowed: Sequence[IPNetwork]) -> httpx.AsyncHTTPTransport:
    """Return an httpx transport whose connections all go through `CheckedBackend`."""
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    # httpx has no public way to set it; tests/worker/webhooks/test_sender.py fails if this stops working.
    transport._pool._network_backend = CheckedBackend(allowed)  # noqa: SLF001
    return transport


def send(
    url: str,
    *,
    event_id: str,
    body: str,
    secret: str,
    timeout_seconds: float,
    allowed: Sequence[IPNetwork],
) -> Answer:
    """Sign and post one event; never raises for what a receiver does."""
    started = time.monotonic()
    try:
        check_url(url)
        answer = asyncio.run(
            _post(url, event_id, body.encode(), secret, seconds=timeout_seconds, allowed=allowed)
        )
        status_code, retry_after, error = answer.status_code, _retry_after(answer), None
    except TimeoutError:
        status_code, retry_after, error = None, None, f"no answer within {timeout_seconds:g} s"
    except (ForbiddenTargetError, httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as failure:
        status_code, retry_after, error = None, None, f"{type(failure).__name__}: {failure}"[:500]
    duration_ms = round((time.monotonic() - started) * 1000)
    return Answer(duration_ms, status_code, error, retry_after)


async def _post(
    url: str, event_id: str, body: bytes, secret: str, *, seconds: float, allowed: Sequence[IPNetwork]
) -> httpx.Response:
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": USER_AGENT,
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secret, event_id=event_id, timestamp=timestamp, body=body),
    }
    # The whole exchange has one deadline: httpx's own never fires on a receiver that drips bytes.
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(transport=checked_transport(allowed), follow_redirects=False) as client,
        client.stream("POST", url, content=body, headers=headers) as response,
    ):
        read = 0
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > MAX_ANSWER_BYTES:
                break
        return response


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else None
