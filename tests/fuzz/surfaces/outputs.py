"""What models write, which their prompts can make anything: reasoning and calls, whole and in any parts."""

import json
from typing import Any

from api.anthropic.blocks import to_blocks
from api.parsing.messages import REASONING, GrowingMessage, to_message
from api.responses.output import OutputWriter
from tests.fuzz.chaos import Chaos
from worker.parsing import coder, deepseek
from worker.parsing.parser import OutputParser, parse
from worker.parsing.pieces import ParsedOutput
from worker.values.parsing import Family, Parsing
from worker.values.thinking import CLOSINGS, OPENINGS, Thinking, ThinkingStyle

MARKS = (
    *OPENINGS.values(),
    *CLOSINGS.values(),
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "call:f",
    coder.FUNCTION + "f>",
    coder.FUNCTION_END,
    coder.PARAMETER + "a>",
    coder.PARAMETER_END,
    deepseek.CALLS,
    deepseek.CALL,
    deepseek.SEPARATOR,
    deepseek.CALL_END,
    deepseek.CODE,
    "<|start|>assistant",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    " to=functions.f",
    "final",
    "analysis",
    '{"name": "f", ',
    '"arguments": ',
    '"parameters": ',
    '{"a": 1}',
    '{"a": NaN}',
    '{"a": "',
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    ":",
    ";",
    " ",
    "\n",
    "f",
    "1e5",
    "[" * 200,
    '{"a":' * 200,
)
THINKING = (
    None,
    None,
    *(Thinking(style, is_open=is_open) for style in ThinkingStyle for is_open in (False, True)),
)


def outputs(chaos: Chaos) -> bool:
    """Parse an output: the same whole as in parts, and in the words of each kind of client."""
    parsing = Parsing(
        chaos.choice(list(Family)),
        chaos.choice(((), ("f",), ("f", "g"))),
        chaos.choice(((), ("f.a",))),
        is_older=chaos.random() < 0.2,
        thinking=chaos.choice(THINKING),
        hides_reasoning=chaos.random() < 0.1,
    )
    text = chaos.line_of(MARKS, most=20).encode(errors="replace").decode()
    whole = parse(text, parsing, seed="s")
    cuts = sorted(chaos.randrange(len(text) + 1) for _ in range(chaos.randrange(6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parser = OutputParser(parsing, seed="s")
    found = [piece for part in parts for piece in parser.feed(part)]
    assert ParsedOutput.of([*found, *parser.end()]) == whole
    _check_chat(text, parts, parsing)
    written = [to_blocks(text, parsing, seed="s"), _items([text], parsing)]
    assert written[1] == _items(parts, parsing)
    json.dumps(written, allow_nan=False).encode()
    return bool(whole.calls or whole.reasoning)


def _items(parts: list[str], parsing: Parsing) -> list[dict[str, Any]]:
    writer = OutputWriter("s", parsing)
    for part in parts:
        writer.feed(part)
    writer.end()
    return writer.items


def _check_chat(text: str, parts: list[str], parsing: Parsing) -> None:
    """Fail unless the deltas of a stream join to the message."""
    message = to_message(text, parsing, seed="s")
    growing = GrowingMessage(parsing, seed="s")
    deltas = [delta for part in parts for delta in growing.feed(part, is_end=False)]
    deltas += growing.feed("", is_end=True)
    json.dumps(message).encode()
    for name in ("content", *REASONING):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index, call in enumerate(message.get("tool_calls", ())):
        own = [one["function"]["arguments"] for one in calls if one["index"] == index]
        assert "".join(own) == call["function"]["arguments"]
