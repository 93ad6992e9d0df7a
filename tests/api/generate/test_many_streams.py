"""As many streams as clients: each gets its text piece by piece, however many there are."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tests.api.generate.test_waiting import INFO, TEXT, answer
from tests.fixtures.api_process import ApiProcess, api_process
from tests.fixtures.batches import held
from tests.fixtures.checkpoint import write_checkpoint
from tests.fixtures.deployment import eventually
from worker.contract.feed import Saved
from worker.contract.messages import GPU_QUEUE
from worker.queue.feed import FeedWriter
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.watching import workers
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason

NUM_STREAMS = 300
FIRST = TEXT[:4]


def be_seen(session: Session) -> None:
    """Say that a worker is there."""
    workers.seen(session, name="gpu@here", queue=GPU_QUEUE, slots=1, info=INFO)


class Worker(threading.Thread):
    """Tells the first piece of all that comes, and the rest once every client has its first piece."""

    def __init__(self, store: Store) -> None:
        super().__init__(daemon=True)
        self.all_have_begun = threading.Event()
        self._store = store
        self._feed = FeedWriter(settings().redis_url)

    def run(self) -> None:
        claims = []
        while len(claims) < NUM_STREAMS:
            ready = eventually(self._ready, what=f"stream {len(claims)}")
            for shard_id in ready:
                claims.append(held(self._store, shard_id))
                self._feed.tell(claims[-1].batch_id, Delta(0, 0, 0, FIRST, 1))
        assert self.all_have_begun.wait(180)
        for claimed in claims:
            self._feed.tell(
                claimed.batch_id, Delta(0, 0, len(FIRST), TEXT[len(FIRST) :], 1, None, FinishReason.STOP)
            )
            answer(self._store, claimed)
            self._feed.tell(claimed.batch_id, Saved())
        self._feed.close()

    def _ready(self) -> list[int]:
        with self._store.transaction() as session:
            be_seen(session)  # on a slow machine it takes longer than a worker may be silent
            query = "SELECT id FROM shards WHERE state = 'ready' AND lane = 'interactive' ORDER BY id"
            return list(session.scalars(text(query)))


async def streams(url: str, worker: Worker) -> list[list[str]]:
    """Return the pieces that each of so many clients gets."""
    num_begun = 0

    async def one(client: httpx.AsyncClient, number: int) -> list[str]:
        nonlocal num_begun
        body = {"prompt": f"hello {number}", "stream": True}
        pieces = []
        async with client.stream("POST", "/v1/generate", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                if "index" in event:
                    pieces.append(event["text"])
                if len(pieces) == 1:
                    num_begun += 1
                    if num_begun == NUM_STREAMS:
                        worker.all_have_begun.set()
        return pieces

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:
        return await asyncio.gather(*(one(client, number) for number in range(NUM_STREAMS)))


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Iterator[ApiProcess]:  # noqa: ARG001 - empties the tables
    with api_process(tmp_path, write_checkpoint(tmp_path)) as running:
        yield running


@pytest.mark.slow
def test_every_one_of_many_streams_comes_piece_by_piece(api: ApiProcess, store: Store) -> None:
    """No client gets its second piece before all have their first, so all stream at one time."""
    with store.transaction() as session:
        be_seen(session)
    worker = Worker(store)
    worker.start()
    found = asyncio.run(streams(api.url, worker))
    worker.join(60)
    assert found == [[FIRST, TEXT[len(FIRST) :]]] * NUM_STREAMS
    assert "WARNING" not in api.log.read_text()


@pytest.mark.slow
def test_as_many_connections_may_be_open_as_the_system_allows(api: ApiProcess) -> None:
    limits = Path(f"/proc/{api.process.pid}/limits").read_text().splitlines()
    (soft, hard) = next(line.split()[3:5] for line in limits if line.startswith("Max open files"))
    assert soft == hard
