"""Conversations that the demo model learns from have the form in which the service reads its answers."""

import json
from pathlib import Path

import pytest

from api.inputs.checkpoint import Checkpoint
from models.demo.dialogue.mix import EOS, Conversation, Material, conversation
from models.demo.dialogue.template import CHAT_TEMPLATE, render
from worker.parsing.parser import parse
from worker.values.parsing import Family, Parsing

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
MATERIAL = Material.of(
    ['def area(a, b):\n    """Return the area of a rectangle."""\n    return a * b\n'],
    ["A mill needs water. The wheel of the mill turns with the river and drives the stones.\n"],
)
SOME = [conversation(number, MATERIAL) for number in range(400)]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.load(DEMO)


def answers(one: Conversation) -> list[dict]:
    return [message for message in one.messages if message["role"] == "assistant"]


def test_a_number_is_always_the_same_conversation() -> None:
    assert SOME[:20] == [conversation(number, MATERIAL) for number in range(20)]
    assert len({json.dumps(one.messages) for one in SOME}) > 350


def test_every_answer_is_learned_and_ends() -> None:
    for one in SOME:
        parts = list(one.parts())
        learned = [part.text for part in parts if part.learned_from is not None]
        assert len(learned) == len(answers(one)) > 0
        assert all(text.endswith(EOS) and text.count(EOS) == 1 for text in learned)
        assert not any(part.text.endswith(EOS) for part in parts if part.learned_from is None)


def test_calls_are_of_offered_functions_and_parsed_as_they_were_meant() -> None:
    num_calls = 0
    for one in SOME:
        names = [tool["function"]["name"] for tool in one.tools]
        texts = [part.text for part in one.parts() if part.learned_from is not None]
        for message, text in zip(answers(one), texts, strict=True):
            calls = [call["function"] for call in message.get("tool_calls", [])]
            found = parse(text.removesuffix(EOS), Parsing(Family.HERMES, tuple(names)), seed="s")
            assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [
                (call["name"], call["arguments"]) for call in calls
            ]
            assert all(call["name"] in names for call in calls)
            num_calls += len(calls)
    assert num_calls > 100


def test_answers_in_json_are_json() -> None:
    texts = [message["content"] for one in SOME for message in answers(one)]
    values = [json.loads(text) for text in texts if text.startswith(("{", '["', "[{"))]
    assert len(values) > 100
    assert any(
        isinstance(inner, dict) for value in values if isinstance(value, dict) for inner in value.values()
    )


def test_json_that_nobody_asked_for_is_not_begun() -> None:
    for one in SOME:
        for part in one.parts():
            if part.learned_from is not None and part.text.startswith("{") and one.is_raw:
                assert part.learned_from == 1


def test_the_service_writes_the_prompts_that_were_learned(checkpoint: Checkpoint) -> None:
    written = json.loads((DEMO / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert written["chat_template"] == checkpoint.template.source == CHAT_TEMPLATE
    assert checkpoint.family is Family.HERMES
    assert checkpoint.template.knows_tools
    for one in SOME:
        if not one.is_raw:
            prompt = checkpoint.template.render(one.messages, tools=one.tools)
            assert prompt == render(one.messages, one.tools, begins_turn=True)
            assert prompt.endswith("Assistant:\n")
