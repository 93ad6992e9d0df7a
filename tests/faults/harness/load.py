"""Clients that submit batches until each is accepted, and change their minds about some of them."""

import json
import random
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from tests.faults.harness.clients import Clients
from tests.faults.harness.cluster import Cluster

NUM_CLIENTS = 2
ENDPOINT = "/v1/completions"
BACKLOG = 120  # requests without a result that there always are
PAUSE_SECONDS = 0.3
# What becomes of a batch: it runs, is cancelled, whole or in part, is paused for a while, has few different
# requests, may be answered by the response cache, or has its requests and its results in files.
FATES = ("run",) * 4 + ("file",) * 3 + ("same",) * 2 + ("cache",) * 2 + ("cancel", "cancel_some", "pause")
WORDS = ("quick", "brown", "lazy", "jugs", "liquor", "café", "東京", "vixen")
BACKLOG_SQL = """
    SELECT coalesce(sum(num_requests - num_completed - num_failed - num_cancelled), 0) FROM batches
    WHERE status IN ('pending', 'processing', 'cancelling')
"""


def draw_prompt(rng: random.Random) -> str:
    """Return one of some thousand prompts, so that now and then two clients ask the same."""
    return f"{rng.choice(WORDS)} {rng.choice(WORDS)} {rng.randrange(30)}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that was accepted, with what it asked for."""

    batch_id: str
    fate: str  # of FATES
    prompts: tuple[str, ...]
    max_tokens: int


@dataclass(slots=True)
class Load:
    """What the clients have done."""

    cluster: Cluster
    callback_url: str
    seed: int
    sent: list[Sent] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)  # why a submission had to be tried again
    errors: list[str] = field(default_factory=list)  # answers that no fault excuses
    _clients: Clients = field(default_factory=Clients)

    def start(self) -> None:
        """Start the clients."""
        self._clients.start(NUM_CLIENTS, str(self.seed), self._submit_for_ever)

    def stop(self) -> None:
        """Let each client finish what it is at."""
        self._clients.stop()

    def _submit_for_ever(self, rng: random.Random) -> None:
        base_url = self.cluster.client.base_url
        with httpx.Client(base_url=base_url, timeout=20) as client:
            while not self._clients.stopping.is_set():
                if self._has_enough():
                    time.sleep(PAUSE_SECONDS)
                    continue
                sent = self._submit(client, rng)
                self.sent.append(sent)
                self._change_mind(client, rng, sent)

    def _change_mind(self, client: httpx.Client, rng: random.Random, sent: Sent) -> None:
        actions: Sequence[str] = ()
        if sent.fate == "cancel":
            actions = ("cancel",)
        elif sent.fate == "cancel_some":
            unwanted = rng.sample(range(len(sent.prompts)), 3)
            actions = [f"requests/{index}/cancel" for index in unwanted]
        elif sent.fate == "pause":
            actions = ("pause", "resume")
        for action in actions:
            time.sleep(rng.uniform(0, 1))
            self._insist(client, f"/v1/batch/{sent.batch_id}/{action}", {409})

    def _has_enough(self) -> bool:
        try:
            return bool(self.cluster.postgres.query(BACKLOG_SQL)[0][0] >= BACKLOG)
        except psycopg.Error:
            return False

    def _submit(self, client: httpx.Client, rng: random.Random) -> Sent:
        fate = rng.choice(FATES)
        few = [draw_prompt(rng) for _ in range(4 if fate == "same" else 40)]
        prompts = tuple(rng.choice(few) for _ in range(rng.randrange(5, 40)))
        max_tokens = rng.choice((10, 40, 100, 300))
        if fate == "file":
            return Sent(self._submit_file(client, prompts, max_tokens), fate, prompts, max_tokens)
        body = {
            "prompts": prompts,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "callback_url": self.callback_url,
            "priority": rng.choice((0, 0, 0, 5)),
            "cache": "exact" if fate == "cache" else "off",
        }
        answer = self._insist(client, "/v1/batch/async", json=body, headers={"Idempotency-Key": uuid4().hex})
        return Sent(str(answer["batch_id"]), fate, prompts, max_tokens)

    def _submit_file(self, client: httpx.Client, prompts: Sequence[str], max_tokens: int) -> str:
        options = {"model": "model", "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        lines = [
            {
                "custom_id": str(number),
                "method": "POST",
                "url": ENDPOINT,
                "body": options | {"prompt": prompt},
            }
            for number, prompt in enumerate(prompts)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        file = self._insist(
            client, "/v1/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", text.encode())}
        )
        body = {
            "input_file_id": file["id"],
            "endpoint": ENDPOINT,
            "completion_window": "24h",
            "callback_url": self.callback_url,
        }
        key = {"Idempotency-Key": uuid4().hex}
        return str(self._insist(client, "/v1/batches", json=body, headers=key)["id"])

    def _insist(
        self,
        client: httpx.Client,
        path: str,
        accepted: Container[int] = (),
        **sent: Any,
    ) -> dict[str, Any]:
        """Post until there is an answer that is neither lost nor a 503."""
        while True:
            try:
                answer = client.post(path, **sent)
            except httpx.HTTPError as error:
                self._count(type(error).__name__)
            else:
                if answer.is_success or answer.status_code in accepted:
                    return dict(answer.json())
                self._count(str(answer.status_code))
                if answer.status_code != 503:
                    self.errors.append(f"{path}: {answer.status_code} {answer.text[:200]}")
            time.sleep(PAUSE_SECONDS)

    def _count(self, why: str) -> None:
        self.refused[why] = self.refused.get(why, 0) + 1
