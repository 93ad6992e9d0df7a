"""Tool loops over a fake engine, with a real endpoint and real rows: order, records, deaths and stops."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.deployment import eventually
from tests.fixtures.tool_endpoint import Endpoint, Told, tool_endpoint
from tests.fixtures.tool_loops import PARSING, Bench, WatchedEngine, calling, turns
from worker.runs.run import Ending
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import control
from worker.values.outcomes import Outcome
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams
from worker.values.tool_loops import OnFailure, ToolLoop
from worker.webhooks import tool_calls


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "WAITS", (0.0, 0.0))


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    with ThreadPoolExecutor(3) as pool:
        bench = Bench(store, pool, WatchedEngine(store))
        yield bench
        bench.draining.set()  # a run that a failed test has left must not keep the pool


@contextmanager
def held_back() -> Iterator[tuple[Endpoint, threading.Event]]:
    """Run an endpoint that answers calls of `look` only when the event is set."""
    go = threading.Event()

    def answer(body: dict[str, Any]) -> Told:
        if body["name"] == "look":
            go.wait(60)
        return 200, f"answer of {body['name']}"

    with tool_endpoint(answer) as endpoint:
        try:
            yield endpoint, go
        finally:
            go.set()


def test_a_conversation_runs_to_its_answer(bench: Bench) -> None:
    with tool_endpoint(lambda body: (200, str(body["arguments"]["a"] + 1))) as endpoint:
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {"a": 1}), said="Let me see."))
        bench.finish_turn(2, calling(("add", {"a": 7}), ("add", {"a": 8})))
        bench.finish_turn(3, "It is 9.")
        assert ending.result(60) is Ending.FINISHED
        bodies = sorted((body for _, body in endpoint.calls), key=lambda body: str(body["id"]))
    result = bench.result()
    assert (result.outcome, result.output, result.finish_reason) == (Outcome.COMPLETED, "It is 9.", "stop")
    assert (result.num_prompt_tokens, result.num_output_tokens) == (9, 9)
    assert bench.input_tokens() == 9
    payload = result.payload
    assert payload is not None
    found = [(turn.number, call.arguments, call.answer) for turn in payload.tool_turns for call in turn.calls]
    assert found == [(1, '{"a": 1}', "2"), (2, '{"a": 7}', "8"), (2, '{"a": 8}', "9")]
    assert all(call.attempts == 1 and call.seconds > 0 for turn in payload.tool_turns for call in turn.calls)
    assert [body["id"] for body in bodies] == [f"{bench.batch_id}-0-{end}" for end in ("1-0", "2-0", "2-1")]
    known = {"type", "id", "call_id", "name", "arguments", "turn", "batch_id", "index", "custom_id"}
    assert bodies[0].keys() == known
    assert (bodies[0]["name"], bodies[0]["turn"], bodies[0]["custom_id"]) == ("add", 1, "row-1")
    first, second, third = (request.prompt for request in bench.engine.requests)
    add = [f'{{"name": "add", "arguments": {{"a": {a}}}}}' for a in (1, 7, 8)]
    assert first == "first"
    assert second == f"[add][look]<user>go<assistant>Let me see.{add[0]}<tool>2<assistant>"
    assert third == second + f"{add[1]}{add[2]}<tool>8<tool>9<assistant>"
    assert turns(bench.store) == []


def test_each_answer_is_recorded_before_the_next_turn(bench: Bench) -> None:
    with tool_endpoint() as endpoint:
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {}), ("look", {})))
        bench.finish_turn(2, calling(("add", {})))
        bench.finish_turn(3, "done")
        assert ending.result(60) is Ending.FINISHED
    answers = [[[call["answer"] for call in turn["calls"]] for turn in now] for now in bench.engine.recorded]
    assert answers == [[["42", "42"]], [["42", "42"], ["42"]]]


def test_a_turn_is_recorded_before_its_calls_are_made(bench: Bench) -> None:
    seen: list[Any] = []

    def answer(_: dict[str, Any]) -> Told:
        seen.append(turns(bench.store))
        return 200, "x"

    with tool_endpoint(answer) as endpoint:
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {"a": 5})))
        bench.finish_turn(2, "done")
        ending.result(60)
    ((turn,),) = seen
    assert (turn["number"], turn["calls"][0]["arguments"]) == (1, '{"a": 5}')


def test_after_a_death_a_recorded_call_is_not_made_again(bench: Bench) -> None:
    with held_back() as (endpoint, go):
        lost = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {}), ("look", {})))
        eventually(lambda: "answer" in (turns(bench.store) or [{"calls": [{}]}])[0]["calls"][0], seconds=60)
        first, bench.engine = bench.engine, WatchedEngine(bench.store)
        ending = bench.take_over()
        endpoint.wait_for(3)
        go.set()
        bench.finish_turn(1, "done")
        assert ending.result(60) is Ending.FINISHED
        assert lost.result(60) is Ending.LOST
        keys = {f"{bench.batch_id}-0-1-0": 1, f"{bench.batch_id}-0-1-1": 2}
        assert endpoint.times == keys
    assert len(first.requests) == 1, "the lost run went on"
    result = bench.result()
    assert (result.output, result.num_prompt_tokens, result.num_output_tokens) == ("done", 6, 6)
    assert result.payload is not None
    assert [call.answer for call in result.payload.tool_turns[0].calls] == ["answer of add", "answer of look"]


def test_a_turn_goes_on_from_what_was_generated_of_it(bench: Bench) -> None:
    with tool_endpoint() as endpoint:
        lost = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {})))
        eventually(lambda: len(bench.engine.requests) == 2, seconds=60)
        bench.engine.partial[bench.engine.requests[1].id] = tuple(range(10))
        bench.draining.set()
        assert lost.result(60) is Ending.HANDED_BACK
        bench.draining = threading.Event()
        bench.engine = WatchedEngine(bench.store)
        ending = bench.go_on()
        bench.finish_turn(1, "done")
        assert ending.result(60) is Ending.FINISHED
        assert len(endpoint.calls) == 1
    (request,) = bench.engine.requests
    assert tuple(request.output_token_ids) == tuple(range(10))
    assert str(request.prompt).endswith("<tool>42<assistant>")


def test_a_cancel_stops_a_conversation_whose_call_is_out(bench: Bench) -> None:
    with held_back() as (endpoint, _):
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("look", {})))
        endpoint.wait_for(1)
        with bench.store.transaction() as session:
            batches.cancel(session, bench.batch_id)
        assert ending.result(60) is Ending.STOPPED
    result = bench.result()
    assert (result.outcome, result.error_code) == (Outcome.CANCELLED, "batch_cancelled")
    assert (result.num_prompt_tokens, result.num_output_tokens) == (3, 3)
    assert result.payload is not None
    assert [call.name for call in result.payload.tool_turns[0].calls] == ["look"]
    assert len(bench.engine.requests) == 1


def test_a_pause_stops_a_conversation_and_a_cancel_keeps_its_record(bench: Bench) -> None:
    with held_back() as (endpoint, go):
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("add", {}), ("look", {})))
        endpoint.wait_for(2)
        eventually(lambda: "answer" in turns(bench.store)[0]["calls"][0], seconds=60)
        with bench.store.transaction() as session:
            control.pause(session, bench.batch_id)
        assert ending.result(60) is Ending.HANDED_BACK
        go.set()
    assert len(bench.engine.requests) == 1
    with bench.store.transaction() as session:
        batches.cancel(session, bench.batch_id)
    result = bench.result()
    assert (result.outcome, result.num_prompt_tokens, result.num_output_tokens) == (Outcome.CANCELLED, 6, 3)
    assert result.payload is not None
    assert [call.answer for call in result.payload.tool_turns[0].calls] == ["answer of add", None]
    assert turns(bench.store) == []


def test_a_request_that_is_out_of_time_fails_with_its_record(bench: Bench) -> None:
    with held_back() as (endpoint, _):
        ending = bench.start(endpoint.url, batch={"request_timeout": 1.0})
        bench.finish_turn(1, calling(("look", {})))
        endpoint.wait_for(1)
        assert ending.result(60) is Ending.FINISHED
    result = bench.result()
    assert (result.outcome, result.error_code) == (Outcome.FAILED, "timeout")
    assert result.payload is not None
    assert result.payload.tool_turns


@pytest.mark.parametrize("on_failure", OnFailure)
def test_an_endpoint_that_fails(bench: Bench, on_failure: OnFailure) -> None:
    with tool_endpoint(lambda _: (503, "away")) as endpoint:
        ending = bench.start(endpoint.url, on_failure=on_failure)
        bench.finish_turn(1, calling(("add", {})))
        if on_failure is OnFailure.TELL_MODEL:
            bench.finish_turn(2, "I could not.")
        assert ending.result(60) is Ending.FINISHED
    result = bench.result()
    assert result.payload is not None
    (call,) = result.payload.tool_turns[0].calls
    assert (call.error, call.attempts, call.has_failed) == ("HTTP 503: away", 3, True)
    if on_failure is OnFailure.FAIL:
        assert (result.outcome, result.error_code) == (Outcome.FAILED, "tool_call_failed")
        assert result.error_message == "the call of 'add' failed: HTTP 503: away"
        assert (result.num_prompt_tokens, result.num_output_tokens) == (3, 3)
    else:
        assert (result.outcome, result.output) == (Outcome.COMPLETED, "I could not.")
        assert '<tool>{"error": "HTTP 503: away"}<assistant>' in str(bench.engine.requests[1].prompt)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (calling(("fly", {})), "there is no function 'fly'; there are 'add', 'look'"),
        (calling(("add", [1])), "the arguments are not a JSON object"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "not a JSON object"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(bench: Bench, said: str, problem: str) -> None:
    with tool_endpoint() as endpoint:
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, said)
        bench.finish_turn(2, "done")
        assert ending.result(60) is Ending.FINISHED
        assert not endpoint.calls
    payload = bench.result().payload
    assert payload is not None
    (call,) = payload.tool_turns[0].calls
    assert problem in (call.error or "")
    assert (call.has_failed, call.attempts) == (False, 0)


def test_the_calls_of_the_last_turn_are_not_made(bench: Bench) -> None:
    with tool_endpoint() as endpoint:
        ending = bench.start(endpoint.url, max_turns=2)
        bench.finish_turn(1, calling(("add", {})))
        bench.finish_turn(2, calling(("look", {})))
        assert ending.result(60) is Ending.FINISHED
        assert len(endpoint.calls) == 1
    assert bench.result().output == calling(("look", {}))


def test_all_turns_share_the_limit_of_tokens(bench: Bench) -> None:
    with tool_endpoint() as endpoint:
        ending = bench.start(endpoint.url, max_tokens=6)
        bench.finish_turn(1, calling(("add", {})))
        bench.finish_turn(2, calling(("look", {})))
        assert ending.result(60) is Ending.FINISHED
    assert [request.params.max_tokens for request in bench.engine.requests] == [6, 3]
    result = bench.result()
    assert (result.outcome, result.finish_reason, result.num_output_tokens) == (
        Outcome.COMPLETED,
        "length",
        6,
    )


def test_the_first_turns_have_parameters_of_their_own(bench: Bench) -> None:
    form = OutputFormat(FormatKind.REGEX, "a+")
    forced = SamplingParams(max_tokens=100, parsing=PARSING, format=form)
    with tool_endpoint() as endpoint:
        ending = bench.start(endpoint.url, forced=forced, forced_turns=2)
        bench.finish_turn(1, calling(("add", {})))
        bench.finish_turn(2, calling(("add", {})))
        bench.finish_turn(3, "done")
        assert ending.result(60) is Ending.FINISHED
    assert [request.params.format for request in bench.engine.requests] == [form, form, None]


def test_calls_together_have_a_limit_of_time(bench: Bench) -> None:
    with held_back() as (endpoint, _):
        ending = bench.start(endpoint.url, total_seconds=0.3, on_failure=OnFailure.TELL_MODEL)
        bench.finish_turn(1, calling(("look", {})))
        bench.finish_turn(2, calling(("look", {})))
        bench.finish_turn(3, "done")
        assert ending.result(60) is Ending.FINISHED
    payload = bench.result().payload
    assert payload is not None
    assert [turn.calls[0].has_failed for turn in payload.tool_turns] == [True, True]
    assert payload.tool_turns[1].calls[0].error == "no time is left for it"


def test_other_requests_run_while_a_call_is_out(bench: Bench) -> None:
    with held_back() as (endpoint, go):
        ending = bench.start(endpoint.url)
        bench.finish_turn(1, calling(("look", {})))
        endpoint.wait_for(1)
        assert bench.engine.open == set(), "the engine holds nothing for it"
        go.set()
        bench.finish_turn(2, "done")
        assert ending.result(60) is Ending.FINISHED


def test_a_loop_is_stored_with_the_order_of_its_keys() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    loop = ToolLoop("https://x", [], tools, {}, forced=SamplingParams(parsing=PARSING))
    again = ToolLoop.from_json(loop.to_json())
    assert replace(again, messages=[], tools=tools) == loop
    assert list(again.tools[0]["function"]["parameters"]["properties"]) == ["z", "a"]
