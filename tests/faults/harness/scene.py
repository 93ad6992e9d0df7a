"""What a fault works on, and how it tells that work has resumed."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.faults.harness.cluster import Cluster
from tests.faults.harness.receiver import Record

RECOVERY_SECONDS = 180.0  # more than this is no recovery
LOOK_SECONDS = 0.05
NOW_AND_THEN_SECONDS = 3.0


class NotRecoveredError(Exception):
    """Work has not resumed after a fault; says what was waited for."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A deployment under load, its receiver, and the dice of this seed."""

    cluster: Cluster
    receiver: Record
    rng: random.Random

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask the database, past every fault but those of the database itself."""
        return self.cluster.postgres.query(statement, *parameters)

    def wait(
        self,
        condition: Callable[[], Any],
        what: str,
        *,
        seconds: float = RECOVERY_SECONDS,
        now_and_then: Callable[[], object] = lambda: None,
    ) -> float:
        """Return how long it took until a condition was true, doing something else now and then.

        Raises:
            NotRecoveredError: it was not within `seconds`.
        """
        started = time.monotonic()
        done_at = float("-inf")
        while not self._holds(condition):
            if time.monotonic() - done_at > NOW_AND_THEN_SECONDS:
                self._holds(now_and_then)
                done_at = time.monotonic()
            if time.monotonic() - started > seconds:
                raise NotRecoveredError(f"{what} did not happen within {seconds:g} s")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - started

    @staticmethod
    def _holds(condition: Callable[[], Any]) -> bool:
        try:
            return bool(condition())
        except psycopg.OperationalError:
            return False

    def held_by(self, worker: str) -> list[tuple[int, int]]:
        """Return (id, fence) of the shards that a worker holds."""
        return self.query(
            "SELECT id, fence FROM shards WHERE state = 'running' AND split_part(worker, '/', 1) = %s", worker
        )

    def taken_over(self, held: Sequence[tuple[int, int]]) -> bool:
        """Whether each of these shards has been claimed anew, or its work is done or no longer wanted.

        One that has become a suspect waits until it can run alone, which is no recovery to be timed.
        """
        waiting = """
            SELECT count(*) FROM shards JOIN batches ON batches.id = batch_id
            WHERE (shards.id, fence) IN (SELECT * FROM unnest(%s::bigint[], %s::int[]))
              AND state IN ('ready', 'running') AND paused_at IS NULL AND NOT is_suspect
        """
        ids, fences = [shard for shard, _ in held], [fence for _, fence in held]
        return self.query(waiting, ids, fences) == [(0,)]

    def next_claim(self) -> float:
        """Wait for the next claim of a batch's shard; return how long it took.

        Interactive work needs no ticket, so it would say nothing of Redis or the dispatchers.
        """
        last = "SELECT coalesce(max(id), 0) FROM audit_claims WHERE lane = 'batch'"
        before = self._once_there_is_an_answer(last)
        return self.wait(lambda: self.query(last)[0][0] > before, "the next claim")

    def next_result(self) -> float:
        """Wait for the next result to be saved; return how long it took."""
        count = "SELECT count(*) FROM results"
        started = time.monotonic()
        before = self._once_there_is_an_answer(count)
        self.wait(lambda: self.query(count)[0][0] > before, "the next result")
        return time.monotonic() - started

    def _once_there_is_an_answer(self, statement: str) -> int:
        found: list[int] = []
        self.wait(lambda: found.append(self.query(statement)[0][0]) or True, "an answer of Postgres")
        return found[0]

    def skip_hours(self) -> None:
        """Let what is to be tried again later be tried now, and every pause of a receiver be over."""
        self.query(
            "UPDATE deliveries SET next_attempt_at = now(), ticketed_at = NULL WHERE state = 'pending'"
        )
        self.query("UPDATE webhook_receivers SET paused_until = NULL WHERE paused_until IS NOT NULL")

    def undelivered(self) -> set[str]:
        """Return the ids of deliveries that are not settled."""
        rows = self.query("SELECT id FROM deliveries WHERE state IN ('pending', 'sending')")
        return {delivery_id for (delivery_id,) in rows}
