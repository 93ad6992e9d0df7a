"""What a customer's program does with the `responses` of an unmodified client."""

import json
import time
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.fixtures.tool_endpoint import tool_endpoint

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


EXACTLY = {"ignore_eos": True}  # as many tokens as asked for
# An end token that is drawn is no part of the text, which may then be empty.
SEEDED = EXACTLY | {"seed": 5}


class Person(BaseModel):
    """What a schema asks for."""

    age: int


def model_of(client: OpenAI) -> str:
    """Return the name of the served model."""
    return client.models.list().data[0].id


def ask(client: OpenAI, **fields: Any) -> Response:
    """Make a short response, and check its body by the client's own model."""
    fields = {"model": model_of(client), "input": "jump over", "max_output_tokens": 6} | fields
    made: Response = client.responses.create(**fields)
    Response.model_validate(made.to_dict())  # the client itself looks at nothing
    return made


def ended(client: OpenAI, response_id: str) -> Response:
    """Poll until a response has ended."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = client.responses.retrieve(response_id)
        if found.status not in {"queued", "in_progress"}:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{response_id} does not end")


def gone(client: OpenAI, response_id: str) -> bool:
    """Return whether there is no such response."""
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response_id)
    return True


def responses(client: OpenAI) -> None:
    """Make, retrieve, continue, list the input, delete."""
    first = ask(client, instructions="be brief", metadata={"a": "b"}, temperature=0)
    assert first.status in {"completed", "incomplete"}
    assert first.usage is not None
    assert 0 < first.usage.output_tokens <= 6
    found = client.responses.retrieve(first.id)
    assert (found.output_text, found.metadata, found.to_dict()) == (
        first.output_text,
        {"a": "b"},
        first.to_dict(),
    )
    turn = [{"role": "user", "content": [{"type": "input_text", "text": "go on"}]}]
    second = ask(client, input=turn, previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))  # page by page
    texts = [one.content[0].text for one in items]
    assert texts == ["jump over", first.output_text, "go on"]
    by_hand = [{"role": "user", "content": "jump over"}, *(one.to_dict() for one in first.output), *turn]
    assert ask(client, input=by_hand).usage.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    assert gone(client, first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    assert gone(client, ask(client, store=False).id)
    told = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, extra_body=SEEDED)
    (part,) = told.output[0].content
    assert len(part.logprobs) == told.usage.output_tokens == 6
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode(errors="replace") == part.text


def response_streams(client: OpenAI) -> None:
    """The events come in order and say what the whole response says."""
    asked = {"model": model_of(client), "input": "jump over", "max_output_tokens": 9}
    asked |= {"extra_body": SEEDED}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    num_deltas = kinds.count("response.output_text.delta")
    assert num_deltas > 1, kinds
    assert kinds == [*ORDER[:4], *[ORDER[4]] * num_deltas, *ORDER[5:], "response.incomplete"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert client.responses.retrieve(events[-1].response.id).to_dict() == events[-1].response.to_dict()
    schema = {"type": "object", "properties": {"age": {"enum": [7]}}, "required": ["age"]}
    form = {"type": "json_schema", "name": "p", "schema": schema | {"additionalProperties": False}}
    asked = {"model": model_of(client), "input": "who?", "text": {"format": form}}
    with client.responses.stream(**asked) as stream:
        for event in stream:
            if event.type == "response.output_text.done":
                assert json.loads(event.text) == {"age": 7}
        assert json.loads(stream.get_final_response().output_text) == {"age": 7}
    flex = ask(client, service_tier="flex")
    assert (flex.service_tier, bool(flex.output_text)) == ("flex", True)


def parsed_responses(client: OpenAI) -> None:
    """`parse` gives an object of the client's class, as the grammar allows nothing else."""
    found = client.responses.parse(model=model_of(client), input="who?", text_format=Person)
    if found.status == "completed":  # a number may go on until the context is full
        assert isinstance(found.output_parsed, Person)


def response_tools(client: OpenAI) -> None:
    """A function that must be called is, with arguments that fit; its output goes back in."""
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    schema |= {"additionalProperties": False}
    tool = {"type": "function", "name": "roll", "parameters": schema, "strict": True}
    asked = {"model": model_of(client), "input": "dice?", "tools": [tool]}
    asked |= {"tool_choice": {"type": "function", "name": "roll"}, "parallel_tool_calls": False}
    made = client.responses.create(**asked)
    (called,) = Response.model_validate(made.to_dict()).output
    assert (called.type, called.name, json.loads(called.arguments)) == ("function_call", "roll", {"n": 7})
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds
    assert (streamed.name, streamed.parsed_arguments) == ("roll", {"n": 7})
    told = [{"type": "function_call_output", "call_id": called.call_id, "output": "six"}]
    after = ask(client, input=told, previous_response_id=made.id, max_output_tokens=3)
    items = client.responses.input_items.list(after.id, order="asc")
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def background(client: OpenAI) -> None:
    """A background response is a batch of one: poll it, cancel it, read its events again."""
    queued = ask(client, background=True, extra_body=SEEDED)
    assert (queued.status, queued.background) in {("queued", True), ("in_progress", True)}
    done = ended(client, queued.id)
    assert done.status in {"completed", "incomplete"}
    assert done.usage is not None
    events = list(client.responses.retrieve(queued.id, stream=True))
    assert [event.type for event in events[:8]] == ORDER
    assert events[-1].response.to_dict() == done.to_dict()
    again = list(client.responses.retrieve(queued.id, stream=True, starting_after=3))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events[4:]]
    asked = {"model": model_of(client), "input": "jump", "max_output_tokens": 4, "extra_body": SEEDED}
    live = list(client.responses.create(**asked, background=True, stream=True))
    kinds = [event.type for event in live]
    assert kinds[:8] == ORDER, kinds
    context = int(client.models.list().data[0].to_dict()["max_model_len"])
    long = {"max_output_tokens": context - 60, "extra_body": EXACTLY}
    # So many that the last one still runs when it is cancelled, on a busy machine too.
    several = [ask(client, background=True, **long) for _ in range(30)]
    client.responses.cancel(several[-1].id)
    assert ended(client, several[-1].id).status == "cancelled"
    for one in several:
        client.responses.delete(one.id)
        assert gone(client, one.id)


def response_lines(client: OpenAI) -> None:
    """A file's lines may be responses, and an endpoint may make their calls."""
    tool = {"type": "function", "name": "stop", "parameters": {"type": "object", "properties": {}}}
    calls = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    with tool_endpoint() as endpoint:
        first, second = _run_lines(
            client,
            {"input": "jump", "max_output_tokens": 5},
            {"input": [{"role": "user", "content": "over"}], "max_output_tokens": 100, "temperature": 0}
            | calls
            | {"tool_endpoint": {"url": endpoint.url}},
        )
        assert [(body["name"], body["custom_id"]) for _, body in endpoint.calls] == [("stop", "row-1")]
    assert first["usage"]["output_tokens"] <= 5
    assert "tool_turns" not in first
    (turn,) = second["tool_turns"]
    assert [(call["name"], call["answer"]) for call in turn["calls"]] == [("stop", "42")]
    assert second["usage"]["output_tokens"] > turn["output_tokens"]


def _run_lines(client: OpenAI, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a file of responses and return them, each checked by the client's own model."""
    lines = b""
    for i, given in enumerate(bodies):
        body = {"model": model_of(client), **given}
        line = {"custom_id": f"row-{i}", "method": "POST", "url": "/v1/responses", "body": body}
        lines += json.dumps(line).encode() + b"\n"
    file = client.files.create(file=("in.jsonl", lines), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="1h")
    deadline = time.monotonic() + 240
    while (batch := client.batches.retrieve(made.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    assert batch.output_file_id is not None
    written = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    answers = {line["custom_id"]: line["response"]["body"] for line in written}
    for answer in answers.values():
        assert Response.model_validate(answer).status in {"completed", "incomplete"}
    return [answers[f"row-{i}"] for i in range(len(bodies))]


SCENES = (responses, response_streams, response_tools, parsed_responses, background, response_lines)
