"""Make the calls of tool loops over HTTP: signed and checked like webhooks, with the answer read."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Any

import httpx

from worker.values.results import MadeCall, storable
from worker.webhooks.network import TooMuchReceivedError
from worker.webhooks.sender import MAX_ERROR_CHARACTERS, posted
from worker.webhooks.targets import ForbiddenTargetError, Targets

# Seconds to wait before each further attempt at a call whose endpoint did not answer.
WAITS = (0.5, 2.0)
# Answers that are worth another attempt, beside those from 500 on.
TEMPORARY = frozenset({408, 425, 429})
SERVER_ERROR = 500
LEAST_SECONDS = 0.05  # of an attempt: no endpoint answers in less


@dataclass(frozen=True, slots=True)
class NewCall:
    """A call to make: the body to post, its key, which is the same on every attempt, and its limits."""

    url: str
    key: str
    body: dict[str, Any]
    timeout_seconds: float  # of one attempt
    seconds_left: float  # of all attempts


class CallStop:
    """Ends the calls that are out, and those that wait for a further attempt. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stopped = Event()
        self._out: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()

    def set(self) -> None:
        """End all calls, those to come too."""
        with self._lock:
            self._stopped.set()
            for loop, task in self._out:
                loop.call_soon_threadsafe(task.cancel)

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the calls are to end."""
        return self._stopped.wait(seconds)

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Let `set` cancel the task that runs the block.

        Raises:
            asyncio.CancelledError: it has been set.

        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - `asyncio.run` has made one
        own = (asyncio.get_running_loop(), task)
        with self._lock:
            if self._stopped.is_set():
                raise asyncio.CancelledError
            self._out.add(own)
        try:
            yield
        finally:
            with self._lock:
                self._out.discard(own)


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """Posts calls.

    Args:
        secrets: `whsec_...`, the deployment's own; calls are signed with each of them.
        targets: Decides which addresses may be connected to.
        at_once: Limit of calls that one shard makes at the same time.

    """

    secrets: Sequence[str]
    targets: Targets
    at_once: int

    def make(self, call: MadeCall, new: NewCall, stop: CallStop) -> MadeCall:
        """Return the call with its answer or error; never raise because of an endpoint's behaviour.

        An attempt without an answer, or with one that says to come again, is repeated, until `stop`.
        """
        if not self.secrets:
            return replace(
                call, error="HEADRACE_WEBHOOK_SECRET is not set, so calls cannot be signed", has_failed=True
            )
        started = time.monotonic()
        for wait in (*WAITS, None):
            left = new.seconds_left - (time.monotonic() - started)
            if left < LEAST_SECONDS:
                return call if call.error else replace(call, error="no time is left for it", has_failed=True)
            call, is_temporary = self._attempt(call, new, min(left, new.timeout_seconds), stop)
            call = replace(call, attempts=call.attempts + 1, seconds=time.monotonic() - started)
            if not is_temporary or wait is None or stop.wait(wait):
                break
        return call

    def _attempt(self, call: MadeCall, new: NewCall, seconds: float, stop: CallStop) -> tuple[MadeCall, bool]:
        """Return the call after one attempt, and whether another one may have a better end."""
        unasked = replace(call, answer=None, error=None, status_code=None, has_failed=True)
        try:
            status, content = asyncio.run(self._post(new, seconds, stop))
        except TooMuchReceivedError as error:
            return replace(unasked, error=str(error), has_failed=False), False
        except ForbiddenTargetError as error:
            return replace(unasked, error=f"the address is refused: {error}"), False
        except asyncio.CancelledError:
            return replace(unasked, error="the run has ended"), False
        except TimeoutError:
            return replace(unasked, error=f"no answer within {seconds:.3g} s"), True
        except (httpx.HTTPError, OSError, ValueError) as error:
            return replace(unasked, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]), True
        text = storable(content.decode(errors="replace"))
        answered = replace(call, answer=None, error=None, status_code=status, has_failed=False)
        if 200 <= status < 300:
            return replace(answered, answer=text), False
        said = f"HTTP {status}: {text}"[:MAX_ERROR_CHARACTERS]
        is_temporary = status >= SERVER_ERROR or status in TEMPORARY
        # From 400 on it is the answer to a wrong question, which the model can ask better.
        is_for_model = 400 <= status < SERVER_ERROR and not is_temporary
        return replace(answered, error=said, has_failed=not is_for_model), is_temporary

    async def _post(self, new: NewCall, seconds: float, stop: CallStop) -> tuple[int, bytes]:
        exchange = posted(
            self.targets.check_url(new.url),
            event_id=new.key,
            body=json.dumps(new.body),
            secrets=self.secrets,
            seconds=seconds,
            targets=self.targets,
            headers={"idempotency-key": new.key},
        )
        with stop.ends():
            async with exchange as response:
                return response.status_code, b"".join([part async for part in response.aiter_raw()])
