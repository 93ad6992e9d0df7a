"""Structured output on a model of random weights, which would get nothing right by itself."""

import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLTokenizer

from tests.fixtures import generation
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.statistics import assert_follows
from tests.fixtures.tiny_llama import BEGIN, END, load_reference, tiny_tokenizer, write_tiny_llama
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.values import grammar as grammar_module
from worker.values.grammar import MAX_SOURCE_CHARACTERS, Grammar, GrammarError, vocabulary_of
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

PROMPT = (0, *range(40, 61))
MAX_TOKENS = 400
CHOICES = ["yes", "no", "no, never", 'q"uo\\te', "new\nline", "a|b.*", "東京 🙂", "[x]"]
PATTERN = r"(?:[A-Z][a-z]{1,5} ){1,3}[0-9]{2,4}(?:é|🙂)?"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "minItems": 1, "maxItems": 3},
        "node": {"$ref": "#/$defs/node"},
    },
    "required": ["name", "age", "node"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": ["object", "null"],
            "properties": {"next": {"$ref": "#/$defs/node"}},
            "additionalProperties": False,
        }
    },
}


def json_schema(schema: dict[str, Any]) -> OutputFormat:
    return OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(schema))


def regex(pattern: str) -> OutputFormat:
    return OutputFormat(FormatKind.REGEX, pattern)


def check(wanted: OutputFormat) -> None:
    Grammar.of(wanted.kind, wanted.source).check(vocabulary())


@cache
def vocabulary() -> LLTokenizer:
    tokenizer = tiny_tokenizer()
    size = tokenizer.get_vocab_size()
    return vocabulary_of(tokenizer.to_str(), tokenizer_size=size, vocab_size=size, end_token_ids=[END])


def is_node(value: Any) -> bool:
    return value is None or (set(value) <= {"next"} and all(map(is_node, value.values())))


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        {"name", "age", "node"} <= set(value) <= {"name", "age", "tags", "node"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 130
        and ("tags" not in value or (1 <= len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b", None}))
        and is_node(value["node"])
    )


GRAMMARS: dict[str, tuple[OutputFormat, Callable[[str], bool]]] = {
    "schema": (json_schema(SCHEMA), fits_schema),
    "object": (OutputFormat(FormatKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    "regex": (regex(PATTERN), lambda text: re.fullmatch(PATTERN, text) is not None),
    "choice": (OutputFormat(FormatKind.CHOICE, tuple(CHOICES)), lambda text: text in CHOICES),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("grammar"), max_position_embeddings=1024)


def params(wanted: OutputFormat | None, **overrides: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "temperature": 1.0, "format": wanted} | overrides)


def assert_fit(completions: list[Completion], fits: Callable[[str], bool]) -> int:
    """Check all choices that were not cut; return how many those were."""
    choices = [choice for completion in completions for choice in completion.choices]
    for choice in choices:
        assert choice.finish_reason in {"stop", "length"}
        assert choice.finish_reason == "length" or fits(choice.text), choice.text
        assert len(choice.token_ids) == MAX_TOKENS or choice.finish_reason == "stop"
    return sum(choice.finish_reason == "stop" for choice in choices)


@pytest.mark.parametrize("name", GRAMMARS)
def test_outputs_fit_beside_free_ones(model: Path, name: str) -> None:
    grammar, fits = GRAMMARS[name]
    engine = make_engine(model, max_num_sequences=32)
    free = [
        GenerationRequest(1000 + seed, (0, 9, 9, seed + 2), greedy(60, temperature=1.0, seed=seed))
        for seed in range(8)
    ]
    alone = [completion.token_ids for completion in run(make_engine(model), free)]
    constrained = [GenerationRequest(seed, PROMPT, params(grammar, seed=seed, n=2)) for seed in range(24)]
    mixed = [request for pair in itertools.zip_longest(constrained, free) for request in pair if request]
    completions = run(engine, mixed)
    assert [completion.token_ids for completion in completions[24:]] == alone
    num_complete = assert_fit(completions[:24], fits)
    assert num_complete >= (12 if name == "object" else 47)  # an object may run on and be cut
    assert len({completion.text for completion in completions[:24]}) >= 4
    # Every choice but the first finds its prompt in the prefix cache.
    assert engine.stats.cached_tokens >= 47 * 20
    again = run(engine, constrained[:6])
    if generation.DEFAULTS["device"] == "cpu":  # a GPU rounds by what else is in a Step
        assert [completion.choices for completion in again] == [one.choices for one in completions[:6]]
    assert all(completion.num_cached_tokens == 20 for completion in again)


LONG = {
    "regex": (regex("[ab]{100}c"), lambda text: re.fullmatch("[ab]{100}c", text)),
    "schema": (
        json_schema({"type": "array", "items": {"enum": [1, 2, "x"]}, "minItems": 30, "maxItems": 30}),
        lambda text: len(json.loads(text)) == 30,
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_preemption_does_not_lose_the_place(model: Path, name: str) -> None:
    grammar, fits = LONG[name]
    prompts = [(0, 9, token) for token in range(2, 10)]
    sampling = params(grammar, seed=5)
    roomy, short = make_engine(model), make_engine(model, num_blocks=110, max_model_len=440)
    expected = run(roomy, requests_for(prompts, sampling))
    completions = run(short, requests_for(prompts, sampling))
    assert short.stats.preemptions > 1
    assert roomy.stats.preemptions == 0
    assert all(fits(completion.text) for completion in completions)
    assert [one.token_ids for one in completions] == [one.token_ids for one in expected]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"min_p": 0.3, "temperature": 2.0},
        {"repetition_penalty": 1.8, "presence_penalty": 2.0},
        {"logit_bias": ((END, 100.0), (70, 100.0))},
        {"ignore_eos": True},
        {"min_tokens": 300},
        {"logprobs": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["schema", "regex", "choice"])
def test_with_every_other_option(model: Path, name: str, options: dict) -> None:
    grammar, fits = GRAMMARS[name]
    (completion,) = run(make_engine(model), requests_for([PROMPT], params(grammar, seed=1, n=6, **options)))
    assert assert_fit([completion], fits) == 6


def test_the_distribution_is_the_models_own_over_what_is_allowed(model: Path) -> None:
    allowed = "acgjptxz"
    ids = [tiny_tokenizer().token_to_id(letter) for letter in allowed]
    with torch.inference_mode():
        logits = load_reference(model)(torch.tensor([PROMPT])).logits[0, -1].double()
    expected = (logits[ids] / 1.5).softmax(-1).numpy()
    sampling = params(regex(f"[{allowed}]"), temperature=1.5, n=128, seed=3)
    requests = [GenerationRequest(index, PROMPT, sampling) for index in range(1)]
    requests += [
        GenerationRequest(seed, PROMPT, params(sampling.format, temperature=1.5, n=128, seed=seed))
        for seed in range(1, 20)
    ]
    completions = run(make_engine(model, max_num_sequences=256), requests)
    letters = [choice.text for completion in completions for choice in completion.choices]
    assert_follows([allowed.index(letter) for letter in letters], expected)


def test_it_ends_where_the_grammar_does(model: Path) -> None:
    engine = make_engine(model)
    (fixed,) = run(engine, requests_for([PROMPT], params(regex("abc"), temperature=0.0)))
    assert (fixed.text, fixed.finish_reason.value) == ("abc", "stop")
    assert tiny_tokenizer().decode(list(fixed.token_ids)) == "abc"
    assert END not in fixed.token_ids  # nothing could follow: no Step was spent on an end token
    # Where more could follow, an end token ends it, and is allowed nowhere else.
    bias = ((END, 100.0),)
    for pattern, text in (("a{3,9}", "aaa"), ("(ab){2}c?", "abab"), ("", "")):
        sampling = params(regex(pattern), temperature=0.0, logit_bias=bias)
        (ended,) = run(engine, requests_for([PROMPT], sampling))
        assert (ended.text, ended.finish_reason.value) == (text, "stop")
        assert ended.token_ids[-1] == END
    sampling = params(regex("a{3,9}"), temperature=0.0, logit_bias=bias, min_tokens=5, ignore_eos=True)
    (later,) = run(engine, requests_for([PROMPT], sampling))
    assert len(later.token_ids) == 6
    # min_tokens gives way where nothing but an end is left.
    letter = tiny_tokenizer().token_to_id("b")
    for pattern, text in (("", ""), ("ab", "a")):
        sampling = params(regex(pattern), stop_token_ids=(letter,), min_tokens=9)
        (forced,) = run(engine, requests_for([PROMPT], sampling))
        assert (forced.text, forced.finish_reason.value, forced.error) == (text, "stop", None)
    (cut,) = run(engine, requests_for([PROMPT], params(regex("[ab]{90}"), max_tokens=7)))
    assert (len(cut.token_ids), cut.finish_reason.value) == (7, "length")
    (last,) = run(engine, requests_for([PROMPT], params(regex("[ab]"), max_tokens=1)))
    assert last.finish_reason == "stop"


def test_a_model_that_would_rather_write_blanks_comes_to_an_end(model: Path) -> None:
    properties = {"reasoned": {"type": "boolean"}, "answers": {"type": "array", "items": {"const": 1}}}
    properties["answers"] |= {"minItems": 2, "maxItems": 2}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    blanks = [token for token in range(320) if not tiny_tokenizer().decode([token]).strip(" \n\r\t")]
    bias = tuple((token, 100.0) for token in blanks if token not in {BEGIN, END})
    assert len(bias) >= 4
    sampling = params(json_schema(schema | {"additionalProperties": False}), logit_bias=bias, n=4)
    (completion,) = run(make_engine(model), requests_for([PROMPT], replace(sampling, max_tokens=70)))
    for choice in completion.choices:
        assert choice.finish_reason == "stop"
        assert list(json.loads(choice.text)) == list(properties)
        assert re.search(r"\s\s|[\n\r\t]", choice.text) is None
        assert " : " in choice.text  # one blank is theirs to write


BAD = {
    "no such type": (json_schema({"type": "text"}), "json_schema: Invalid type: text"),
    "not built": (json_schema({"not": {}}), 'json_schema: Unimplemented keys: ["not"]'),
    "cannot be": (
        json_schema({"type": "integer", "minimum": 3, "maximum": 2}),
        "json_schema: Unsatisfiable schema",
    ),
    # Its message is cut in the middle of a character, and the library panics.
    "panic": (
        json_schema({"pattern": {"x" + "🙂" * 40: 1}}),
        "json_schema: the grammar is not understood",
    ),
    "regex": (regex("a[b"), "regex: .*unclosed character class"),
    "look-ahead": (regex("(?=a)b"), "regex: .*look-ahead.*not supported"),
    "too long": (regex("a" * MAX_SOURCE_CHARACTERS), "regex: .* characters are over the limit"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_grammar_is_that_requests_error(model: Path, name: str) -> None:
    grammar, message = BAD[name]
    with pytest.raises(GrammarError, match=f"(?s)^{re.escape(message) if '[' in message else message}"):
        check(grammar)
    bad = GenerationRequest(0, PROMPT, params(grammar, n=2))
    good = GenerationRequest(1, PROMPT, params(GRAMMARS["choice"][0]))
    failed, completed = run(make_engine(model), [bad, good])
    assert failed.finish_reason == "error"
    assert failed.error is not None
    assert re.match(re.escape(message) if "[" in message else message, failed.error, re.DOTALL)
    assert "<state>" not in failed.error
    assert completed.text in CHOICES


@pytest.mark.parametrize("make", [lambda: Grammar.json_schema("{nope"), lambda: Grammar.choice([])])
def test_what_is_no_grammar_at_all(make: Callable[[], Grammar]) -> None:
    with pytest.raises(GrammarError, match=r"^(json_schema|choice): "):
        make()
    with pytest.raises(GrammarError, match=r"^regex: "):
        Grammar.regex("\ud83d")


def test_good_grammars_pass_the_check() -> None:
    for grammar, _ in GRAMMARS.values():
        check(grammar)


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(model: Path) -> None:
    grammar = regex("[ab]{12}c{99999}")
    check(grammar)
    engine = make_engine(model, max_num_sequences=4)
    bad = GenerationRequest(0, PROMPT, params(grammar, n=5, seed=1, logit_bias=((END, -100.0),)))
    good = GenerationRequest(1, PROMPT, params(GRAMMARS["choice"][0]))
    failed, completed = run(engine, [bad, good])
    assert failed.finish_reason == "error"
    assert "too many expressions" in str(failed.error)
    assert [choice.token_ids for choice in failed.choices] == [()]
    assert completed.text in CHOICES
    assert engine.num_running == engine.num_waiting == 0


def test_what_would_take_a_hundred_megabytes_to_compile_is_refused(model: Path) -> None:
    costly = params(regex("bc{99999}"))  # the library would by itself
    schema = {"properties": {f"p{i}": {"type": "string", "maxLength": 2000} for i in range(100)}}
    ample = params(json_schema(schema), max_tokens=2)
    requests = [GenerationRequest(number, PROMPT, one) for number, one in enumerate((costly, ample))]
    failed, completed = run(make_engine(model), requests)
    assert "too many expressions" in str(failed.error)
    assert completed.error is None
    assert completed.num_output_tokens == 2  # `{}` may be whole


@pytest.mark.parametrize("count", [2000, 3400])
def test_deep_references_do_not_overflow_the_stack(tmp_path: Path, count: int) -> None:
    """On a common stack the process dies; so in a process of its own."""
    code = f"""
from worker.engine.text.grammar import GrammarCompiler
from worker.values.grammar import Grammar
from worker.values.sampling import FormatKind, OutputFormat
from worker.engine.text.tokenizer import Tokenizer
import json
from pathlib import Path
import sys
definitions = {{f"d{{i}}": {{"items": {{"$ref": f"#/$defs/d{{i + 1}}"}}}} for i in range({count})}}
definitions["d{count}"] = {{"type": "null"}}
schema = json.dumps({{"$ref": "#/$defs/d0", "$defs": definitions}})
try:
    compiler = GrammarCompiler(Tokenizer(Path(sys.argv[1])), 320, {{1}})
    Grammar.json_schema(schema).check(compiler._vocabulary)
    matcher = compiler.matcher(OutputFormat(FormatKind.JSON_SCHEMA, schema))
    assert any(matcher.allowed()[0])
    print("compiled")
except Exception as error:
    print(type(error).__name__, "over the limit" in str(error))
"""
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["compiled"] if count == 2000 else ["GrammarError", "True"])


def test_a_checkpoint_without_an_end_token_takes_no_grammar(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text()) | {"eos_token_id": None}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    thread = EngineThread(lambda: make_engine(tmp_path))
    thread.start()
    (failed,) = thread.submit(requests_for([PROMPT], params(GRAMMARS["choice"][0]))).take(30)
    (completed,) = thread.submit(requests_for([PROMPT], greedy(3))).take(30)
    thread.stop()
    assert "names no end token" in str(failed.error)
    assert len(completed.token_ids) == 3


def test_grammars_are_compiled_once_and_by_the_caller(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[str] = []
    deep = grammar_module.on_deep_stack

    def recorded(work: Callable[[], Any]) -> Any:
        callers.append(threading.current_thread().name)
        return deep(work)

    monkeypatch.setattr(grammar_module, "on_deep_stack", recorded)
    thread = EngineThread(lambda: make_engine(model))
    thread.start()
    requests = requests_for([PROMPT] * 3, params(GRAMMARS["choice"][0], n=3))
    submission = thread.submit([*requests, *requests_for([PROMPT], params(BAD["regex"][0]), first_id=3)])
    completions: list[Completion] = []
    while not submission.is_done:
        completions += submission.take(30)
    thread.stop()
    assert sorted(completion.error is not None for completion in completions) == [False] * 3 + [True]
    assert callers == [threading.current_thread().name] * 2
    assert submission.num_output_tokens == sum(completion.num_output_tokens for completion in completions)


def test_checking_needs_no_torch() -> None:
    """So that the API can refuse a bad grammar without loading an engine."""
    code = "import sys, worker.values.grammar; assert not {'torch', 'transformers'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
