"""One call of a tool over HTTP: what is sent, and what becomes of each kind of answer."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.fixtures.receiver import receiver
from tests.fixtures.tool_endpoint import Told, tool_endpoint
from tests.fixtures.webhooks import LOOPBACK, SECRET
from worker.values.results import MadeCall
from worker.webhooks import tool_calls
from worker.webhooks.tool_calls import CallStop, NewCall, ToolCaller

CALL = MadeCall("call_1", "add", '{"a": 1}')


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "WAITS", (0.0, 0.0))


def make(
    url: str,
    *,
    timeout: float = 10,
    left: float = 60,
    secrets: tuple[str, ...] = (SECRET,),
    stop: CallStop | None = None,
) -> MadeCall:
    new = NewCall(url, "batch_1-0-1-0", {"id": "batch_1-0-1-0", "arguments": {"a": 1}}, timeout, left)
    return ToolCaller(secrets, LOOPBACK, 2).make(CALL, new, stop or CallStop())


def test_a_call_is_signed_and_has_a_key() -> None:
    with tool_endpoint(lambda _: (200, "zwölf")) as endpoint:
        made = make(endpoint.url)
        ((headers, body),) = endpoint.calls
        assert Webhook(SECRET).verify(endpoint.raw[0], headers) == body
    assert headers["webhook-id"] == headers["idempotency-key"] == body["id"] == "batch_1-0-1-0"
    assert (made.answer, made.error, made.status_code, made.attempts) == ("zwölf", None, 200, 1)
    assert made.is_done
    assert not made.has_failed
    assert made.seconds > 0


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_an_endpoint_that_is_away_is_asked_three_times_with_one_key(status: int) -> None:
    with tool_endpoint(lambda _: (status, "later")) as endpoint:
        made = make(endpoint.url)
        assert endpoint.times == {"batch_1-0-1-0": 3}
    assert (made.error, made.has_failed, made.attempts) == (f"HTTP {status}: later", True, 3)


def test_a_later_attempt_may_succeed() -> None:
    told: list[Told] = [(502, "no"), (200, "yes")]

    def answer(_: dict[str, Any]) -> Told:
        return told.pop(0)

    with tool_endpoint(answer) as endpoint:
        made = make(endpoint.url)
    assert (made.answer, made.error, made.has_failed, made.attempts) == ("yes", None, False, 2)


@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_a_wrong_question_is_for_the_model(status: int) -> None:
    with tool_endpoint(lambda _: (status, "no such city")) as endpoint:
        made = make(endpoint.url)
    assert (made.answer, made.error) == (None, f"HTTP {status}: no such city")
    assert (made.has_failed, made.attempts) == (False, 1)


def test_an_answer_that_is_too_long_is_for_the_model() -> None:
    with tool_endpoint(lambda _: (200, "x" * 100_000)) as endpoint:
        made = make(endpoint.url)
    assert (made.answer, made.error, made.has_failed) == (None, "the answer is too long", False)


def test_a_redirect_is_not_followed() -> None:
    with receiver() as inner, receiver((307, {"location": inner.url})) as hook:
        made = make(hook.url)
        assert (len(hook.calls), len(inner.calls)) == (1, 0)
    assert (made.status_code, made.has_failed, made.attempts) == (307, True, 1)


def test_a_slow_endpoint_has_failed() -> None:
    go = Event()
    with tool_endpoint(lambda _: (200, "late" if go.wait(60) else "")) as endpoint:
        made = make(endpoint.url, timeout=0.2, left=0.5)
        go.set()
    assert made.has_failed
    assert "no answer within" in (made.error or "")
    assert made.seconds < 30


def test_a_call_that_is_out_can_be_ended() -> None:
    go, stop = Event(), CallStop()
    with tool_endpoint(lambda _: (200, "late" if go.wait(60) else "")) as endpoint:
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(make, endpoint.url, timeout=60, stop=stop)
            endpoint.wait_for(1)
            stop.set()
            made = making.result(30)
        go.set()
    assert (made.error, made.has_failed, made.attempts) == ("the run has ended", True, 1)
    assert make(endpoint.url, stop=stop).error == "the run has ended"


def test_nobody_listens() -> None:
    with tool_endpoint() as endpoint:
        url = endpoint.url
    made = make(url)
    assert (made.has_failed, made.attempts, made.status_code) == (True, 3, None)


def test_without_a_secret_nothing_is_sent() -> None:
    with tool_endpoint() as endpoint:
        made = make(endpoint.url, secrets=())
        assert not endpoint.calls
    assert made.has_failed
    assert "HEADRACE_WEBHOOK_SECRET" in (made.error or "")


def test_what_cannot_be_stored_is_replaced() -> None:
    with tool_endpoint(lambda _: (200, "a\x00b")) as endpoint:
        assert make(endpoint.url).answer == "a\N{REPLACEMENT CHARACTER}b"
