"""What was checked in one line is not checked again, and changes no request and no error."""

import json
from itertools import pairwise
from typing import Any

import pytest

import api.openai.alike
from api.errors import ApiError
from api.inputs.checkpoint import Checkpoint
from api.openai.alike import MAX_KNOWN, AlikeBodies
from api.openai.bodies import Endpoint
from api.openai.requests import from_line
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint

CHAT, COMPLETIONS, EMBEDDINGS, _ = Endpoint
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path_factory.mktemp("model"), chat_template=TEMPLATE))


def say(*contents: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": one, **fields} for one in contents]}


def ways(checkpoint: Checkpoint) -> list[tuple[Endpoint, dict[str, Any]]]:
    """Bodies, each followed by one that differs from it in little."""
    prompts = [
        {"prompt": "a"},
        {"prompt": "b"},
        {"prompt": "b", "n": 1},
        {"prompt": "c", "n": True},
        {"prompt": "c", "n": 1.0},
        {"prompt": "c", "n": 2},
        {"prompt": "d", "n": 2, "max_tokens": 5},
        {"prompt": "e", "max_tokens": 5, "n": 2},
        {"prompt": ""},
        {"prompt": "\x00"},
        {"prompt": "\ud800"},
        {"prompt": None},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": "g", "stream": True},
        {"prompt": "g", "unknown": 1},
        {"prompt": "h", "response_format": {"type": "json_object"}},
        {"prompt": "i", "response_format": {"type": "json_object"}},
        {"prompt": "i", "temperature": 3},
        {},
    ]
    chats = [
        say("a"),
        say("b"),
        say("a", role="system"),
        say(""),
        say("a", "b"),
        say("c", "d"),
        say(None),
        say("\x00"),
        say([{"type": "text", "text": "a"}]),
        say("a", name="x"),
        say("a", name=1),
        say("a") | {"tools": [TOOL]},
        say("b") | {"tools": [TOOL]},
        say("b") | {"tools": [TOOL], "tool_choice": "required"},
        say("x", role="assistant", tool_calls=[CALL]),
        say("y", role="assistant", tool_calls=[CALL]),
        say("y", role="developer"),
        say("z", role="developer"),
        say("a") | {"max_tokens": 3, "max_completion_tokens": 4},
        say("a") | {"logprobs": True, "top_logprobs": 2},
        say("a") | {"top_logprobs": 2},
        say("a", role="nobody"),
        say("refuse"),
        {"messages": []},
        {"messages": ["a"]},
        {"messages": "a"},
    ]
    bodies = [(COMPLETIONS, one) for one in prompts] + [(CHAT, one) for one in chats]
    bodies += [(EMBEDDINGS, {"input": "a"}), (EMBEDDINGS, {"input": "b"}), (CHAT, {"prompt": "a"})]
    return [(endpoint, {"model": checkpoint.name, **body}) for endpoint, body in bodies]


def told(read: Any, *args: Any) -> Any:
    try:
        return read(*args, custom_id="x", path="body")
    except ApiError as error:
        return type(error), error.message, error.param, error.code


def test_bodies_that_are_alike_give_what_each_gives_alone(checkpoint: Checkpoint) -> None:
    alike = AlikeBodies(checkpoint)
    bodies = ways(checkpoint)
    expected = [told(from_line, checkpoint, endpoint, body) for endpoint, body in bodies]
    for _ in range(2):  # the second time with all of them known
        assert [told(alike.from_line, endpoint, body) for endpoint, body in bodies] == expected
    assert [told(alike.from_line, endpoint, body) for endpoint, body in reversed(bodies)] == expected[::-1]
    assert sum(isinstance(one, tuple) for one in expected) > 15, "errors are told as well"
    assert all(json.dumps(one) != json.dumps(other) for (_, one), (_, other) in pairwise(bodies))


def test_the_rest_is_checked_once(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = AlikeBodies(checkpoint)
    count = Counted(api.openai.alike.read_line_body)
    monkeypatch.setattr(api.openai.alike, "read_line_body", count)
    for number in range(20):
        body = {"model": checkpoint.name, "prompt": f"text {number}", "seed": 5}
        assert alike.from_line(COMPLETIONS, body, custom_id=str(number)).custom_id == str(number)
        chat = {"model": checkpoint.name, **say(f"text {number}", "b")}
        assert f"text {number}" in alike.from_line(CHAT, chat, custom_id=None).prompt
    assert count.number == 2, "a completion and a chat"


def test_no_more_than_so_many_are_kept(checkpoint: Checkpoint) -> None:
    alike = AlikeBodies(checkpoint)
    for seed in range(3 * MAX_KNOWN + 5):
        request = alike.from_line(
            COMPLETIONS, {"model": checkpoint.name, "prompt": "a", "seed": seed}, custom_id=None
        )
        assert request.params is not None
        assert request.params.seed == seed  # type: ignore[union-attr]
        assert len(alike._known) <= MAX_KNOWN
    long = {"model": checkpoint.name, "prompt": "a", "user": "u" * (1 << 17)}
    before = dict(alike._known)
    assert alike.from_line(COMPLETIONS, long, custom_id=None).prompt == "a"
    assert alike._known == before


def test_a_body_too_deep_is_read_as_ever(checkpoint: Checkpoint) -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = [deep]
    body = {"model": checkpoint.name, "prompt": "a", "metadata": deep}
    assert told(AlikeBodies(checkpoint).from_line, COMPLETIONS, body) == told(
        from_line, checkpoint, COMPLETIONS, body
    )


class Counted:
    """A function that knows how often it was called."""

    def __init__(self, function: Any) -> None:
        self.function, self.number = function, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.number += 1
        return self.function(*args, **options)
