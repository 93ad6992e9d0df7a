import asyncio

import pytest

from api.guards import traffic
from api.guards.traffic import Traffic


@pytest.fixture(autouse=True)
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "WAIT_SECONDS", 30.0)


def test_an_upload_waits_until_a_short_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "SHORT_SECONDS", 30.0)

    async def upload() -> list[str]:
        roads, seen = Traffic(), []
        roads.enter("poll")
        asyncio.get_running_loop().call_later(0.05, lambda: (seen.append("answered"), roads.leave("poll")))
        await roads.give_way()
        return [*seen, "went on"]

    assert asyncio.run(asyncio.wait_for(upload(), 20)) == ["answered", "went on"]


@pytest.mark.parametrize(
    ("short_seconds", "wait_seconds"), [(0.0, 30.0), (30.0, 0.01)], ids=["long requests", "for ever"]
)
def test_what_it_does_not_wait_for(
    monkeypatch: pytest.MonkeyPatch, short_seconds: float, wait_seconds: float
) -> None:
    monkeypatch.setattr(traffic, "SHORT_SECONDS", short_seconds)
    monkeypatch.setattr(traffic, "WAIT_SECONDS", wait_seconds)

    async def upload() -> None:
        roads = Traffic()
        roads.enter("another")
        await roads.give_way()

    asyncio.run(asyncio.wait_for(upload(), 20))
