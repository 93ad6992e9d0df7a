"""Calls that are forced, by a model that knows nothing."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from api.inputs.checkpoint import Checkpoint
from tests.api.openai.test_tools import FAMILIES, TIME, asked, sampling
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.parsing.parser import parse
from worker.values.grammar import Grammar
from worker.values.parsing import Family

BOUNDED: dict[str, Any] = {
    "name": "draw",
    "parameters": {
        "type": "object",
        "properties": {
            "shape": {"enum": ["a", "b"]},
            "at": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
            "name": {"type": "string", "maxLength": 3},
        },
        "required": ["shape", "at"],
    },
}


@pytest.mark.parametrize("family", [*FAMILIES, Family.HERMES, Family.NONE])
def test_a_model_that_knows_nothing_calls_with_valid_arguments(tmp_path: Path, family: Family) -> None:
    """Each output is a random walk through the tokens that the grammar allows, as of an untrained model."""
    mark = FAMILIES[family][0] if family in FAMILIES else "<tool_call>" if family is Family.HERMES else ""
    template = "{% if tools %}{{ '" + mark + "' }}{% endif %}" + TEMPLATE
    checkpoint = Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))
    draw = {"type": "function", "function": BOUNDED}
    params = sampling(asked(checkpoint, tools=[draw, TIME], tool_choice="required"))
    assert params.format is not None
    compiled = Grammar.of(params.format.kind, params.format.source).compile(checkpoint.vocabulary)
    (end,) = checkpoint.vocabulary.eos_tokens
    for seed in range(30):
        chance, matcher, token_ids = Random(seed), compiled.deep_copy(), list[int]()
        while not matcher.is_accepting():
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")
            token_id = chance.choice([i for i in range(256) if allowed >> i & 1 and i != end])
            assert matcher.consume_token(token_id)
            token_ids.append(token_id)
        parsed = parse(checkpoint._tokenizer.decode(token_ids), params.parsing, seed="s")
        assert (parsed.content, not parsed.calls) == ("", False)
        for called in parsed.calls:
            arguments = json.loads(called.arguments)
            if called.name == "draw":
                assert list(arguments) == [name for name in ("shape", "at", "name") if name in arguments]
                assert arguments["shape"] in {"a", "b"}
                assert all(0 <= number <= 9 for number in arguments["at"])
            else:
                assert (called.name, arguments) == ("get_time", {})
