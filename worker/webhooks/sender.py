"""Make one attempt at delivering a webhook over HTTP. Follows no redirects and uses no proxies."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from types import MappingProxyType

import httpx

from worker.webhooks.network import CheckedBackend, TooMuchReceivedError
from worker.webhooks.signing import sign
from worker.webhooks.targets import ForbiddenTargetError, Targets

MAX_ANSWER_BYTES = 16 * 1024
MAX_CONNECT_SECONDS = 5.0  # for each address of a host
MAX_ERROR_CHARACTERS = 500
USER_AGENT = "headrace-webhooks/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """Receiver's answer to one attempt, or the reason that there is none."""

    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    retry_after: float | None = None
    was_sent: bool = True  # False: not sent, for a reason on our side

    @property
    def is_delivered(self) -> bool:
        """Return whether the status is 2xx: nothing else is success, nor is a redirect."""
        return self.status_code is not None and 200 <= self.status_code < 300


def checked_transport(targets: Targets, *, is_tls: bool) -> httpx.AsyncHTTPTransport:
    """Return an httpx transport whose connections all go through `CheckedBackend`."""
    transport = httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False)
    # httpx has no public way to set it; tests/worker/webhooks/test_hostile.py fails if this stops working.
    transport._pool._network_backend = CheckedBackend(targets, is_tls=is_tls)  # noqa: SLF001
    return transport


def send(
    url: str, *, event_id: str, body: str, secrets: Sequence[str], timeout_seconds: float, targets: Targets
) -> Answer:
    """Sign and post one event; never raise because of a receiver's behaviour.

    The whole attempt, from resolving the name on, ends within `timeout_seconds`.
    """
    started = time.monotonic()
    status_code, retry_after, error = None, None, None
    try:
        response = asyncio.run(
            _post(targets.check_url(url), event_id, body, secrets, timeout_seconds, targets)
        )
        status_code, retry_after = response.status_code, _retry_after(response)
    except TimeoutError:
        error = f"no answer within {timeout_seconds:g} s"
    except (ForbiddenTargetError, TooMuchReceivedError, httpx.HTTPError, OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_CHARACTERS]
    duration_ms = round((time.monotonic() - started) * 1000)
    return Answer(duration_ms, status_code, error, retry_after)


@asynccontextmanager
async def posted(
    url: httpx.URL,
    *,
    event_id: str,
    body: str,
    secrets: Sequence[str],
    seconds: float,
    targets: Targets,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[httpx.Response]:
    """Post a signed body and yield the answer, whose own body is still to be read.

    Raises TimeoutError where all of it, the reading in the block too, takes longer than `seconds`.
    """
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": USER_AGENT,
        **headers,
        **sign(secrets, event_id=event_id, at=datetime.now(UTC), body=body),
    }
    timeout = httpx.Timeout(seconds, connect=min(seconds, MAX_CONNECT_SECONDS))
    transport = checked_transport(targets, is_tls=url.scheme == "https")
    # The whole exchange has one deadline: httpx's own never fires on a receiver that drips bytes.
    async with (
        asyncio.timeout(seconds),
        httpx.AsyncClient(transport=transport, follow_redirects=False, timeout=timeout) as client,
        client.stream("POST", url, content=body.encode(), headers=headers) as response,
    ):
        yield response


async def _post(
    url: httpx.URL, event_id: str, body: str, secrets: Sequence[str], seconds: float, targets: Targets
) -> httpx.Response:
    answered = None
    try:
        async with posted(
            url, event_id=event_id, body=body, secrets=secrets, seconds=seconds, targets=targets
        ) as response:
            answered = response
            await _read_a_little(response)
    except TimeoutError:
        if answered is None:
            raise
    return answered


async def _read_a_little(response: httpx.Response) -> None:
    """Let the receiver finish a short answer. Nothing after its status line and headers is used."""
    read = 0
    try:
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > MAX_ANSWER_BYTES:
                return
    except (TooMuchReceivedError, httpx.HTTPError):
        return


def _retry_after(response: httpx.Response) -> float | None:
    """Return the header's wait in seconds: it is a number, or a date (RFC 9110, section 10.2.3)."""
    value = response.headers.get("retry-after", "")
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
