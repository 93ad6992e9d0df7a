"""The demo model answers in form, under the prompts of the service: chats, JSON and calls end."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from api.inputs.chat import ToolUse, to_chat
from api.inputs.checkpoint import Checkpoint
from api.inputs.tools import FunctionDefinition
from tests.fixtures.generation import make_engine, requests_for, run
from worker.engine.engine import Engine
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.parsing.parser import parse
from worker.parsing.pieces import ParsedOutput
from worker.values.outcomes import FinishReason
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
# As generation_config.json has it.
SAMPLED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, "seed": 5}
PROMPTS = (
    "Hello!",
    "What is the capital of Norway?",
    "Describe a cat.",
    "Tell me about the weather in Rome.",
    "Label this: The queue is fast.",
    "The soup was cold and the waiter was rude.",
    "Extract the name and age: Nora is 31 years old.",
    "Order three lamps for Peter, please.",
    "def read_lines(path):",
    "The json module provides",
    "What does the os module do?",
    "Write a short review of a hotel.",
    "Who won the game on Sunday?",
    "Make up a customer.",
    "How do I sort a list in Python?",
    "Is water wet?",
)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {k: v if isinstance(v, dict) else {"type": v} for k, v in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": _object(name="string", age="integer"),
    "label": _object(
        sentiment={"enum": ["positive", "negative", "neutral"]}, confidence="number", reason="string"
    ),
    "nested": _object(
        name="string",
        contact=_object(email="string", address=_object(street="string", city="string")),
        tags={"type": "array", "items": {"type": "string"}},
    ),
    "list": {"type": "array", "items": _object(product="string", quantity="integer", price="number")},
    "article": _object(title="string", summary="string", published="boolean", year="integer"),
    "any object": {"type": "object"},
}
TOOLS = {
    "get_weather": ("Get the weather of a city.", _object(city="string")),
    "send_email": ("Send an email.", _object(to="string", subject="string")),
    "add": ("Add two numbers.", _object(a="integer", b="integer")),
    "book_table": ("Book a table.", _object(name="string", guests="integer")),
}
# What is asked, the function that it is for, and its arguments.
ASKED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ("What's the weather like in Oslo today?", "get_weather", {"city": "Oslo"}),
    ("Will it rain in Tokyo?", "get_weather", {"city": "Tokyo"}),
    ("Is it warm in Boston?", "get_weather", {"city": "Boston"}),
    ("Send an email to Anna about music.", "send_email", {"to": "Anna", "subject": "music"}),
    ("Write to Omar about the budget.", "send_email", {"to": "Omar", "subject": "budget"}),
    ("What is 12 plus 30?", "add", {"a": 12, "b": 30}),
    ("Add 7 and 8.", "add", {"a": 7, "b": 8}),
    ("Book a table with name Clara and guests 4.", "book_table", {"name": "Clara", "guests": 4}),
    ("Please book a table with name Igor and guests 2.", "book_table", {"name": "Igor", "guests": 2}),
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.load(DEMO)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return make_engine(DEMO, block_size=16, num_blocks=512, max_num_sequences=16, num_threads=2)


def chat(
    engine: Engine,
    checkpoint: Checkpoint,
    conversations: Sequence[Sequence[dict[str, Any]]],
    use: ToolUse,
    **options: Any,
) -> list[tuple[Completion, ParsedOutput]]:
    """Answer conversations as the service does."""
    requests, parsings = [], []
    for i, turns in enumerate(conversations):
        prompt, params = to_chat(checkpoint, turns, use, SamplingParams(**SAMPLED | options))
        if params.format is not None:
            engine.grammars.prepare(params.format)
        requests.append(GenerationRequest(i, prompt, params, add_special_tokens=False))
        parsings.append(params.parsing)
    found = run(engine, requests)
    return [(one, parse(one.text, parsings[i], seed="s")) for i, one in enumerate(found)]


def ended(completions: Sequence[Completion]) -> int:
    """How many ended by themselves."""
    return sum(one.finish_reason is FinishReason.STOP for one in completions)


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_by_a_schema_ends(engine: Engine, checkpoint: Checkpoint, name: str) -> None:
    wanted = OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMAS[name]))
    found = chat(
        engine, checkpoint, [asked(text) for text in PROMPTS], ToolUse(), max_tokens=128, format=wanted
    )
    # Three objects in each other leave more places to go astray.
    assert ended([one for one, _ in found]) >= (12 if name == "nested" else 14)


def test_json_after_a_plain_prompt_ends(engine: Engine) -> None:
    wanted = OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMAS["label"]))
    engine.grammars.prepare(wanted)
    found = run(engine, requests_for(PROMPTS, SamplingParams(**SAMPLED, max_tokens=128, format=wanted)))
    assert ended(found) >= 14


def test_chats_end(engine: Engine, checkpoint: Checkpoint) -> None:
    found = chat(engine, checkpoint, [asked(text) for text in PROMPTS], ToolUse(), max_tokens=128)
    assert ended([one for one, _ in found]) >= 12


def offered(*names: str) -> ToolUse:
    return ToolUse(
        [
            FunctionDefinition(name=name, description=TOOLS[name][0], parameters=TOOLS[name][1])
            for name in names
        ]
    )


def test_a_function_that_fits_is_called(engine: Engine, checkpoint: Checkpoint) -> None:
    num_calls = 0
    for text, name, _ in ASKED:
        ((_, parsed),) = chat(engine, checkpoint, [asked(text)], offered(name), temperature=0, max_tokens=96)
        num_calls += [call.name for call in parsed.calls] == [name]
    assert num_calls >= 8


def test_one_of_several_functions_is_called(engine: Engine, checkpoint: Checkpoint) -> None:
    """Which one is the right one is beyond this model."""
    found = chat(
        engine,
        checkpoint,
        [asked(text) for text, _, _ in ASKED],
        offered(*TOOLS),
        temperature=0,
        max_tokens=96,
    )
    assert ended([completion for completion, _ in found]) >= 8
    assert sum(bool(parsed.calls) and parsed.calls[0].name in TOOLS for _, parsed in found) >= 8


def test_a_result_is_answered_in_words(engine: Engine, checkpoint: Checkpoint) -> None:
    turns = [
        *asked("What is the weather in Paris?"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"temperature": 21}'},
    ]
    ((completion, parsed),) = chat(
        engine, checkpoint, [turns], offered("get_weather"), max_tokens=64, temperature=0
    )
    assert completion.finish_reason is FinishReason.STOP
    assert parsed.content
    assert not parsed.calls
