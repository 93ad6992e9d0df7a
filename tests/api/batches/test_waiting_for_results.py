"""A reader who has read all there is asks to be kept waiting, instead of asking again and again."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.batches import service
from tests.fixtures.batches import held, run_to_the_end, submit
from worker.store.batches import batches
from worker.store.database.session import Store

NUM_WAITERS = 120  # three times the threads that routes share


def at_the_first_look(monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> list[bool]:
    """Have `event` happen once somebody was found to have nothing to read; return what every look found."""
    looks: list[bool] = []
    has_news = service.has_news

    def look(*args: Any, **options: Any) -> bool:
        looks.append(has_news(*args, **options))
        if looks == [False]:
            event()
        return looks[-1]

    monkeypatch.setattr(service, "has_news", look)
    return looks


def test_a_request_is_held_until_there_is_a_result(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store, num_requests=4)
    looks = at_the_first_look(monkeypatch, lambda: run_to_the_end(store, held(store, 2)))
    page = client.get(f"/v1/batch/{batch_id}/results", params={"wait": 60}).json()
    assert ([one["index"] for one in page["data"]], page["status"]) == ([2, 3], "processing")
    assert looks == [False, True]
    client.get(f"/v1/batch/{batch_id}/results", params={"wait": 60})
    assert looks == [False, True, True], "what is there already is answered at once"


def test_a_request_is_held_until_the_batch_has_ended(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store, num_requests=4)
    for shard_id in (1, 2):
        run_to_the_end(store, held(store, shard_id))
    page = client.get(f"/v1/batch/{batch_id}/results", params={"wait": 60, "after": 4}).json()
    assert (page["data"], page["status"]) == ([], "completed")

    other = submit(store)

    def cancel_and_delete() -> None:
        client.post(f"/v1/batch/{other}/cancel")
        assert client.delete(f"/v1/batch/{other}").status_code == 204

    looks = at_the_first_look(monkeypatch, cancel_and_delete)
    gone = client.get(f"/v1/batch/{other}/results", params={"wait": 60})
    assert (gone.status_code, looks) == (404, [False, True])


def test_a_request_is_held_no_longer_than_it_asks(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    page = client.get(f"/v1/batch/{batch_id}/results", params={"wait": 0.01}).json()
    assert page == {"object": "list", "data": [], "next": 0, "has_more": False, "status": "pending"}


def test_paging_and_waiting_read_every_result_once(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store, num_requests=6, shard_size=3)
    looks = at_the_first_look(monkeypatch, lambda: run_to_the_end(store, held(store, 1)))
    read: list[int] = []
    asked: dict[str, Any] = {"limit": 2, "wait": 60, "after": 0}
    while True:
        page = client.get(f"/v1/batch/{batch_id}/results", params=asked).json()
        assert page["data"], "no page is empty while more may come"
        read += [one["sequence"] for one in page["data"]]
        asked["after"] = page["next"]
        if len(read) == 3:
            assert not page["has_more"]
            run_to_the_end(store, held(store, 2))
        if not page["has_more"] and page["status"] == "completed":
            break
    assert read == [1, 2, 3, 4, 5, 6]
    assert looks.count(False) == 1


def test_whoever_waits_takes_no_thread_from_others(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = submit(store)
    have_all_looked = threading.Event()
    looks: list[bool] = []
    has_news = service.has_news

    def look(*args: Any, **options: Any) -> bool:
        looks.append(has_news(*args, **options))
        if len(looks) == NUM_WAITERS:
            have_all_looked.set()
        return looks[-1]

    monkeypatch.setattr(service, "has_news", look)

    async def wait_together() -> list[httpx.Response]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as api:
            url = f"/v1/batch/{batch_id}/results?wait=60"
            waiting = [asyncio.create_task(api.get(url)) for _ in range(NUM_WAITERS)]
            assert await asyncio.to_thread(have_all_looked.wait, 120)
            stats = await api.get("/v1/batch/stats")  # a thread is free for it
            assert (stats.status_code, sum(task.done() for task in waiting)) == (200, 0)
            with store.transaction() as session:
                batches.cancel(session, batch_id)
            return await asyncio.gather(*waiting)

    answers = asyncio.run(wait_together())
    assert {answer.json()["status"] for answer in answers} == {"cancelled"}
