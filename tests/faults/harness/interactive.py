"""Clients that wait for one answer each, mostly as a stream, through whatever breaks meanwhile."""

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.harness.clients import Clients
from tests.faults.harness.cluster import Cluster
from tests.faults.harness.load import draw_prompt

NUM_CLIENTS = 2
PAUSE_SECONDS = 0.5
NOTICE_SECONDS = 1.0  # that it takes to see that a process has died
# An answer that is longer in coming is none: a shard waits for a lease, and a client for a shard.
ANSWER_SECONDS = 90.0
REFUSED = {429, 503, 504}


class TornStreamError(Exception):
    """A stream that ended without an answer, or the error that takes its place."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told: a text, under the id of its batch."""

    batch_id: str
    prompt: str
    max_tokens: int
    text: str


@dataclass(slots=True)
class Interactive:
    """What the clients were told."""

    cluster: Cluster
    seed: int
    answers: list[Answer] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)  # of all: answered, or what instead
    errors: list[str] = field(default_factory=list)  # what no fault excuses
    _clients: Clients = field(default_factory=Clients)

    def start(self) -> None:
        """Start the clients."""
        self._clients.start(NUM_CLIENTS, f"{self.seed} interactive", self._ask_for_ever)

    def stop(self) -> None:
        """Let each client have its last answer."""
        self._clients.stop()

    def _ask_for_ever(self, rng: random.Random) -> None:
        with httpx.Client(base_url=self.cluster.client.base_url, timeout=ANSWER_SECONDS) as client:
            while not self._clients.stopping.wait(rng.uniform(0, PAUSE_SECONDS)):
                prompt, max_tokens = draw_prompt(rng), rng.choice((20, 60, 300))
                # Most wait for the whole answer; some read a little of it and go away.
                most_events = rng.choice((None, None, None, rng.randrange(1, 6)))
                ask = _stream if rng.random() < 0.75 else _whole
                self.endings[self._ask(ask, client, prompt, max_tokens, most_events)] += 1

    def _ask(
        self, ask: Any, client: httpx.Client, prompt: str, max_tokens: int, most_events: int | None
    ) -> str:
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        started = time.monotonic()
        api = self.cluster.api_pid()
        try:
            answer, ending = ask(client, body, most_events)
        except httpx.TimeoutException as error:
            self.errors.append(f"no answer in {time.monotonic() - started:.0f} s: {type(error).__name__}")
            return "timed out"
        except httpx.HTTPError as error:
            time.sleep(NOTICE_SECONDS)
            is_starting = isinstance(error, httpx.ConnectError)
            if api is not None and api == self.cluster.api_pid() and not is_starting:
                self.errors.append(f"the API lives and broke a connection: {error!r}")
            return type(error).__name__
        except TornStreamError as error:
            self.errors.append(str(error))
            return "torn"
        if answer is not None:
            self.answers.append(Answer(answer["batch_id"], prompt, max_tokens, answer["text"]))
        elif ending.isdigit() and int(ending) not in REFUSED:
            self.errors.append(f"/v1/generate: {ending}")
        return str(ending)


Told = tuple[dict[str, Any] | None, str]


def _whole(client: httpx.Client, body: dict[str, Any], _: int | None) -> Told:
    answer = client.post("/v1/generate", json=body)
    if answer.is_success:
        return answer.json(), "answered"
    return None, str(answer.status_code)


def _stream(client: httpx.Client, body: dict[str, Any], most_events: int | None) -> Told:
    events: list[dict[str, Any]] = []
    with client.stream("POST", "/v1/generate", json=body | {"stream": True}) as answer:
        if not answer.is_success:
            return None, str(answer.status_code)
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return _whole_of(events), "streamed"
            if data:
                events.append(json.loads(data))
                if "error" in events[-1]:
                    return None, str(events[-1]["error"]["code"] or events[-1]["error"]["type"])
                if most_events is not None and len(events) >= most_events:
                    return None, "left"
    raise TornStreamError(f"a stream ended after {len(events)} events and neither answer nor error")


def _whole_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the last event, which is the whole answer, if the pieces before it are its text."""
    *pieces, whole = events
    told = "".join(piece["text"] for piece in pieces)
    if told != whole["text"]:
        raise TornStreamError(f"{told!r} was streamed of {whole['text']!r}")
    return whole
