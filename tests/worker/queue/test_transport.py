"""What is let through to Celery, and what is put back for it."""

import json

import pytest
from redis import Redis

from tests.fixtures.malformed import malformed, ticket
from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, RUN_SHARD, Ticket
from worker.queue.celery_app import app
from worker.queue.publish import publish
from worker.queue.transport import NotATicketError, check
from worker.settings import settings

MALFORMED = malformed(ticket(RUN_SHARD, 7))


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_no_ticket_is_none(what: str) -> None:
    with pytest.raises(NotATicketError):
        check(MALFORMED[what], [RUN_SHARD, DELIVER_EVENT])


def test_what_is_published_is_a_ticket() -> None:
    with Redis.from_url(settings().redis_url) as redis:
        redis.delete("tried")
        publish(Ticket(task=RUN_SHARD, queue="tried", row_id=7, issue=1, label="a shard"))
        (raw,) = redis.lrange("tried", 0, -1)
        redis.delete("tried")
    check(raw, [RUN_SHARD])
    check(json.dumps(ticket(RUN_SHARD, 7)).encode(), [RUN_SHARD])


@pytest.mark.parametrize("what", MALFORMED)
def test_what_a_worker_left_is_put_back_or_dropped(what: str) -> None:
    try:
        left = json.dumps([json.loads(MALFORMED[what]), "", CALLBACKS_QUEUE]).encode()
    except (ValueError, RecursionError):
        left = MALFORMED[what]
    with Redis.from_url(settings().redis_url) as redis, app.connection() as connection:
        redis.hset("unacked", "left", left)
        redis.zadd("unacked_index", {"left": 0})
        connection.channel().qos.restore_by_tag("left")
        assert not redis.hexists("unacked", "left")
        assert redis.zscore("unacked_index", "left") is None
        redis.delete(CALLBACKS_QUEUE)
