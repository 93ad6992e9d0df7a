from collections.abc import Iterator

import pytest

from worker.queue.broker import Broker
from worker.settings import settings


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(settings().redis_url)
    broker._redis.flushdb()
    yield broker
    broker.close()
