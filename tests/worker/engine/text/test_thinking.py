"""What a model thinks before its answer: how long, where it ends, and that a format is the answer's."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, run
from tests.fixtures.tiny_llama import END
from worker.engine.engine import Engine
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.sequences.thoughts import Thoughts
from worker.engine.text.thinking import num_reasoning_tokens
from worker.values.parsing import Family, Parsing
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams
from worker.values.thinking import Thinking, ThinkingStyle

TAGS, OPEN = Thinking(ThinkingStyle.TAGS), Thinking(ThinkingStyle.TAGS, is_open=True)
MARKS_END = "\n</think>\n\n"
LETTERS = OutputFormat(FormatKind.REGEX, "[a-f]{6}")
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = OutputFormat(
    FormatKind.JSON_SCHEMA,
    json.dumps(
        {"type": "object", "properties": {"a": DIGIT}, "required": ["a"], "additionalProperties": False}
    ),
)


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Engine:
    return make_engine(tiny_llama)


def thinking(params: SamplingParams, marks: Thinking = OPEN) -> SamplingParams:
    return replace(params, parsing=Parsing(Family.NONE, thinking=marks))


def one(engine: Engine, params: SamplingParams, output: tuple[int, ...] = ()) -> Completion:
    (found,) = run(engine, [GenerationRequest(0, "the quick", params, output_token_ids=output)])
    assert found.error is None
    return found


def fed(text: str, marks: Thinking, *, budget: int | None = None, opening: str = "") -> tuple[Thoughts, str]:
    """Feed characters as tokens, except where others are wanted; return the thoughts and all that was fed."""
    thoughts = Thoughts(
        marks, chr, opening_ids=list(map(ord, opening)), end_ids=list(map(ord, marks.end)), budget=budget
    )
    said, left = "", list(text)
    while not thoughts.is_over and (left or thoughts.wanted is not None):
        token = thoughts.wanted if thoughts.wanted is not None else ord(left.pop(0))
        thoughts.push(token)
        said += chr(token)
    return thoughts, said


@pytest.mark.parametrize(
    ("text", "marks", "said"),
    [
        ("hm</think>{}", OPEN, "hm</think>"),
        ("\n<think>hm</think>{}", TAGS, "\n<think>hm</think>"),
        ("hm</thin</think>{}", OPEN, "hm</thin</think>"),
        ("yes", TAGS, "y"),
        ("<thanks>", TAGS, "<tha"),
        ("[THINK]hm[/THINK]x", Thinking(ThinkingStyle.MISTRAL), "[THINK]hm[/THINK]"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>x",
            Thinking(ThinkingStyle.HARMONY),
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_thoughts_are_over_where_their_mark_ends(text: str, marks: Thinking, said: str) -> None:
    thoughts, found = fed(text, marks)
    assert (thoughts.is_over, found) == (True, said)


@pytest.mark.parametrize(
    ("text", "marks", "budget", "opening", "said"),
    [
        ("hmmmmm", OPEN, 3, "", "hmm" + MARKS_END),
        ("hmmmmm", OPEN, 0, "", MARKS_END),
        ("hmmmmm", TAGS, 2, "<think>", "<think>hm" + MARKS_END),
        ("hmmmmm", TAGS, 0, "<think>", "<think>" + MARKS_END),
        ("<think>hmmm", TAGS, 2, "", "<think>hm" + MARKS_END),
        ("hm</think>", OPEN, 99, "", "hm</think>"),
        ("yes", TAGS, 0, "", "y"),
    ],
)
def test_a_budget_ends_thoughts(text: str, marks: Thinking, budget: int, opening: str, said: str) -> None:
    thoughts, found = fed(text, marks, budget=budget, opening=opening)
    assert (thoughts.is_over, found) == (True, said)


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_engine_ends_thoughts_at_their_budget(engine: Engine, budget: int) -> None:
    free = one(engine, greedy(40))
    found = one(engine, thinking(greedy(40, thinking_budget=budget)))
    assert found.token_ids[:budget] == free.token_ids[:budget]
    thoughts = engine.tokenizer.decode(found.token_ids[:budget], skip_special_tokens=False)
    assert found.text.startswith(thoughts + MARKS_END)
    assert len(found.token_ids) == 40
    assert len(found.text) > len(thoughts + MARKS_END)
    (choice,) = found.choices
    counted = engine.tokenizer.decode(found.token_ids[: choice.num_reasoning_tokens])
    assert counted.rstrip("\n") == f"{thoughts}\n</think>"


@pytest.mark.parametrize("marks", [OPEN, TAGS])
@pytest.mark.parametrize("wanted", [LETTERS, SCHEMA])
def test_a_format_is_that_of_the_answer(engine: Engine, marks: Thinking, wanted: OutputFormat) -> None:
    for seed in range(4):
        params = SamplingParams(
            max_tokens=100, temperature=1.0, seed=seed, format=wanted, thinking_budget=6,
            logit_bias=((END, 100.0),) if seed % 2 else (),
        )  # fmt: skip
        found = one(engine, thinking(params, marks))
        thoughts, mark, answer = found.text.partition(MARKS_END)
        assert mark
        assert thoughts.startswith("<think>") is (marks is TAGS)
        assert found.finish_reason == "stop"
        assert re.fullmatch("[a-f]{6}", answer) if wanted is LETTERS else json.loads(answer)["a"] in range(10)


def test_the_outcome_is_the_same_after_an_interruption(engine: Engine) -> None:
    params = thinking(greedy(60, format=LETTERS, thinking_budget=5, ignore_eos=False), TAGS)
    whole = one(engine, params)
    for kept in range(1, len(whole.token_ids) - 1, 3):
        assert one(engine, params, whole.token_ids[:kept]).token_ids == whole.token_ids


def test_without_budget_and_format_thoughts_change_no_token(engine: Engine) -> None:
    free = one(engine, greedy(20))
    assert one(engine, thinking(greedy(20))).token_ids == free.token_ids
    assert one(engine, thinking(greedy(20))).choices[0].num_reasoning_tokens == 20
    assert one(engine, thinking(greedy(20), TAGS)).choices[0].num_reasoning_tokens == 0
    assert free.choices[0].num_reasoning_tokens == 0


def test_tokens_of_thoughts_are_counted_to_their_mark(engine: Engine) -> None:
    for text, marks, counted in (
        ("<think>the lazy dog</think>\njumps", TAGS, "<think>the lazy dog</think>"),
        ("the lazy dog</think>jumps", OPEN, "the lazy dog</think>"),
        ("the lazy dog", TAGS, ""),
        ("the lazy dog", OPEN, "the lazy dog"),
    ):
        (ids,) = engine.tokenizer.encode_batch([text])
        number = num_reasoning_tokens(marks, ids, engine.tokenizer)
        assert engine.tokenizer.decode(ids[:number]).startswith(counted)
        assert number == 0 or counted not in engine.tokenizer.decode(ids[: number - 1])
