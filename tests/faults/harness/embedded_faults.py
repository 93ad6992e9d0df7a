"""The faults of a deployment as `make up` starts it: as in `faults`, each returns when work had resumed."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.harness.embedded import EmbeddedCluster
from tests.faults.harness.scene import NotRecoveredError, Scene
from tests.fixtures.malformed import malformed, queues, ticket
from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, RUN_SHARD


@dataclass(frozen=True, slots=True)
class EmbeddedScene(Scene):
    """A scene whose deployment is one tree of processes."""

    cluster: EmbeddedCluster


def embedded_redis_killed(scene: EmbeddedScene) -> float:
    """SIGKILL the embedded Redis: it is started again where it was."""
    scene.cluster.redis.kill()
    return scene.next_claim()


def embedded_postgres_killed(scene: EmbeddedScene) -> float:
    """SIGKILL the postmaster: it is started again and reads its log."""
    scene.cluster.postgres.kill()
    return scene.next_result()


def everything_killed(scene: EmbeddedScene) -> float:
    """SIGKILL every process and start again at once, now and then with a stranger under Postgres's number."""
    cluster = scene.cluster
    cluster.kill()
    if scene.rng.random() < 0.5:
        cluster.start()
        return scene.next_result()
    with cluster.innocent() as stranger:
        cluster.start()
        seconds = scene.next_result()
        if stranger.poll() is not None:
            raise NotRecoveredError("a stranger under the number of the old Postgres lived on")
    return seconds


def malformed_messages(scene: EmbeddedScene) -> float:
    """Put what is no ticket into every queue, many kinds of it."""
    with scene.cluster.redis.client() as redis:
        for queue in queues(redis):
            task = DELIVER_EVENT if queue == CALLBACKS_QUEUE else RUN_SHARD
            redis.rpush(queue, *malformed(ticket(task, 10**9)).values())
    return scene.next_claim()


EMBEDDED_FAULTS: dict[str, Callable[[EmbeddedScene], float]] = {
    inject.__name__: inject
    for inject in (embedded_redis_killed, embedded_postgres_killed, everything_killed, malformed_messages)
}
