"""What an output's text becomes is the same, however it is cut into parts."""

import json
from typing import Any

import pytest

from api.anthropic.blocks import GrowingBlocks, to_blocks
from worker.values.parsing import Family, Parsing

HERMES = Parsing(Family.HERMES, tools=("look", "add"))
CALLS = (
    'I look.\n<tool_call>\n{"name": "look", "arguments": {"where": "up", "deep": [1, {"a": "}"}]}}\n'
    "</tool_call>\n"
    '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
)
HARMONY = Parsing(Family.HARMONY)
THOUGHT = "<|channel|>analysis<|message|>hm, hm<|end|><|start|>assistant<|channel|>final<|message|>So it is."


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["type"].removeprefix("content_block_"), event["index"]) for event in events]


def test_calls_are_blocks_of_their_own() -> None:
    text, look, add = to_blocks(CALLS, HERMES, seed="msg_1")
    assert text == {"type": "text", "text": "I look.", "citations": None}
    assert (look["type"], look["name"]) == ("tool_use", "look")
    assert look["input"] == {"where": "up", "deep": [1, {"a": "}"}]}
    assert (add["name"], add["input"]) == ("add", {})
    assert look["id"] != add["id"]
    assert to_blocks(CALLS, HERMES, seed="msg_1")[1]["id"] == look["id"]


def test_reasoning_is_a_block_before_the_text() -> None:
    assert to_blocks(THOUGHT, HARMONY, seed="") == [
        {"type": "thinking", "thinking": "hm, hm", "signature": ""},
        {"type": "text", "text": "So it is.", "citations": None},
    ]


def test_a_call_that_was_cut_off_has_the_arguments_so_far() -> None:
    cut = CALLS[: CALLS.index("[1, ") + 4]
    assert to_blocks(cut, HERMES, seed="")[1]["input"] == {"where": "up", "deep": [1]}


def test_numbers_that_json_has_not_are_null() -> None:
    arguments = '{"a": [NaN, 1], "b": {"c": -Infinity}, "d": 1e999}'
    text = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
    (call,) = to_blocks(text, HERMES, seed="")
    assert json.dumps(call["input"], allow_nan=False) == '{"a": [null, 1], "b": {"c": null}, "d": null}'


def test_an_output_without_text_has_an_empty_block() -> None:
    assert to_blocks("", None, seed="") == [{"type": "text", "text": "", "citations": None}]


@pytest.mark.parametrize(("text", "parsing"), [(CALLS, HERMES), (THOUGHT, HARMONY), ("plain", None)])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_stream_builds_the_same_blocks(text: str, parsing: Parsing | None, size: int) -> None:
    growing = GrowingBlocks(parsing, seed="msg_1")
    events = [
        event for start in range(0, len(text), size) for event in growing.add(text[start : start + size])
    ]
    events += growing.end()
    whole = to_blocks(text, parsing, seed="msg_1")
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [(one["type"], one.get("id")) for one in starts] == [(one["type"], one.get("id")) for one in whole]
    outer = [one for one in kinds(events) if one[0] != "delta"]
    assert outer == [(kind, index) for index in range(len(whole)) for kind in ("start", "stop")]
    for index, block in enumerate(whole):
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == index]
        name = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[block["type"]]
        joined = "".join(delta[name] for delta in deltas)
        if block["type"] != "tool_use":
            assert joined == block[block["type"]]
        else:
            assert to_blocks(CALLS, HERMES, seed="msg_1")[index]["input"] == json.loads(joined)
