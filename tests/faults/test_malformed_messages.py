"""Whoever writes to Redis what is no ticket costs a line in the log, and no worker."""

from pathlib import Path

import pytest

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.malformed import malformed, queues, ticket
from tests.fixtures.receiver import receiver
from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, GPU_QUEUE, RUN_SHARD, gpu_queue
from worker.contract.models import Model, identify

pytestmark = pytest.mark.slow

GPU_TASK, CALLBACKS_TASK = ticket(RUN_SHARD, 10**9), ticket(DELIVER_EVENT, "nobody's")


def all_of(found: list[str], model: Model) -> list[str]:
    """Return the queues once each worker reads its own; those of earlier deployments' models are not read."""
    read = {GPU_QUEUE, gpu_queue(model.fingerprint), CALLBACKS_QUEUE}
    return sorted(read) if read <= set(found) else []


def test_malformed_messages_in_every_queue_take_no_worker_down(running: Deployment) -> None:
    bad = {"gpu": malformed(GPU_TASK), "callbacks": malformed(CALLBACKS_TASK)}
    sent = dict.fromkeys(bad, 0)
    model = identify(Path(running.environment["HEADRACE_MODEL"]))
    with running.redis() as redis, receiver() as hook:
        for queue in eventually(lambda: all_of(queues(redis), model), what="workers read both queues"):
            name = queue.split(".")[0]
            sent[name] += redis.lpush(queue, *bad[name].values())
            eventually(lambda queue=queue: redis.llen(queue) == 0, what=f"{queue} was emptied")
        batch_id = running.submit(prompts=["x"], max_tokens=2, callback_url=hook.url)
        running.wait_for(batch_id)
        hook.wait_for(1)
    for name, count in sent.items():
        assert running.processes[name].poll() is None
        dropped = [line for line in running.log(name).splitlines() if "is dropped, since" in line]
        assert len(dropped) == count >= 20
        assert "Traceback" not in running.log(name)


@pytest.mark.parametrize("message", [b"7", b"{nonsense", b"{}", b'{"properties": 1}', b'{"body": null}'])
def test_a_malformed_message_to_all_workers_takes_none_down(running: Deployment, message: bytes) -> None:
    with running.redis() as redis, receiver() as hook:
        for channel in redis.pubsub_channels():
            redis.publish(channel, message)
        batch_id = running.submit(prompts=["x"], max_tokens=2, callback_url=hook.url)
        running.wait_for(batch_id)
        hook.wait_for(1)
    assert {running.processes[name].poll() for name in ("gpu", "callbacks")} == {None}
