"""Fields that clients of OpenAI, vLLM and SGLang send: done, accepted without effect, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.errors import ApiError, ModelNotFoundError
from api.inputs.checkpoint import Checkpoint
from api.inputs.prompts import fit
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import from_line, to_request
from tests.fixtures.checkpoint import CONTEXT, TEMPLATE, write_checkpoint
from worker.settings import Settings
from worker.store.requests.requests import NewRequest
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

CHAT, COMPLETIONS, EMBEDDINGS = list(Endpoint)[:3]
INPUTS: dict[Endpoint, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
}
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
JSON = OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA))
OBJECT = OutputFormat(FormatKind.JSON_OBJECT)
DIGITS = OutputFormat(FormatKind.REGEX, "[0-9]+")
CHOICE = OutputFormat(FormatKind.CHOICE, ("yes", "no"))
GRAMMAR = 'root ::= "yes" | "no"'
WRITTEN = OutputFormat(FormatKind.REGEX, r"(?:(?:\x{79}\x{65}\x{73}|\x{6e}\x{6f}))")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path_factory.mktemp("model"), chat_template=TEMPLATE))


def asked(checkpoint: Checkpoint, endpoint: Endpoint, **body: Any) -> NewRequest:
    return to_request(checkpoint, read_body(endpoint, {"model": checkpoint.name, **INPUTS[endpoint], **body}))


def params_of(checkpoint: Checkpoint, endpoint: Endpoint, **body: Any) -> SamplingParams:
    params = asked(checkpoint, endpoint, **body).params
    assert isinstance(params, SamplingParams)
    return params


@pytest.mark.parametrize("endpoint", INPUTS)
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"guided_grammar": GRAMMAR}, WRITTEN),
        ({"ebnf": GRAMMAR}, WRITTEN),
        ({"regex": "[0-9]+"}, DIGITS),
        ({"json_schema": json.dumps(SCHEMA)}, JSON),
        ({"json_schema": SCHEMA}, JSON),
        ({"structured_outputs": {"json": SCHEMA}}, JSON),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON),
        ({"structured_outputs": {"json": {}}}, OutputFormat(FormatKind.JSON_SCHEMA, "{}")),
        ({"structured_outputs": {"regex": "[0-9]+", "json_object": False}}, DIGITS),
        ({"structured_outputs": {"choice": ["yes", "no"], "disable_fallback": True}}, CHOICE),
        ({"structured_outputs": {"grammar": GRAMMAR, "whitespace_pattern": None}}, WRITTEN),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_every_name_of_a_format(
    checkpoint: Checkpoint, endpoint: Endpoint, body: dict[str, Any], wanted: OutputFormat | None
) -> None:
    assert params_of(checkpoint, endpoint, **body).format == wanted


@pytest.mark.parametrize("endpoint", INPUTS)
def test_fields_of_sampling(checkpoint: Checkpoint, endpoint: Endpoint) -> None:
    found = params_of(
        checkpoint,
        endpoint,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=[5],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        truncate_prompt_tokens=3,
    )
    assert (found.min_tokens, found.stop_token_ids, found.ignore_eos) == (2, (5,), True)
    assert found.include_stop_str_in_output
    assert not found.skip_special_tokens
    assert found.truncate_prompt_tokens == 3
    assert params_of(checkpoint, endpoint, no_stop_trim=True).include_stop_str_in_output


def test_special_tokens_are_added_where_the_client_says_so(checkpoint: Checkpoint) -> None:
    assert [asked(checkpoint, endpoint).add_special_tokens for endpoint in INPUTS] == [False, True]
    for wanted in (False, True):
        for endpoint in INPUTS:
            assert asked(checkpoint, endpoint, add_special_tokens=wanted).add_special_tokens is wanted


@pytest.mark.parametrize("endpoint", INPUTS)
def test_a_hint_changes_nothing(checkpoint: Checkpoint, endpoint: Endpoint) -> None:
    hints = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "hello"},
        "request_id": "r",
        "guided_decoding_backend": "xgrammar",
        "spaces_between_special_tokens": True,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "bad_words": [],
        "logits_processors": None,
        "cache_salt": None,
    }
    assert asked(checkpoint, endpoint, **hints) == asked(checkpoint, endpoint)


@pytest.mark.parametrize("endpoint", INPUTS)
@pytest.mark.parametrize(
    ("body", "param", "advice"),
    [
        ({"bad_words": ["x"]}, "bad_words", "send logit_bias"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids", "send guided_choice"),
        ({"use_beam_search": True}, "use_beam_search", "send n or best_of"),
        ({"length_penalty": 0.5}, "length_penalty", "beam search"),
        ({"logits_processors": ["x"]}, "logits_processors", "send logit_bias"),
        ({"cache_salt": "s"}, "cache_salt", "tenants share no prefix"),
        ({"lora_path": "x"}, "lora_path", "load the merged checkpoint"),
        ({"stop_regex": "x"}, "stop_regex", "send stop strings"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "leave it out"),
        ({"guided_grammar": "root ::= root"}, "guided_grammar", "send a JSON schema"),
        ({"regex": "["}, "regex", "regex"),
        ({"ebnf": 'start: "a"'}, "ebnf", "write EBNF"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "EBNF"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "combined"),
        ({"structured_outputs": {"json": {"enum": []}}}, "structured_outputs.json", "Unsatisfiable"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "tools"),
        (
            {"structured_outputs": {"whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "space",
        ),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, "guided_json", "combined"),
        ({"response_format": {"type": "grammar"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": []}}},
            "response_format.schema",
            "Unsatis",
        ),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"truncate_prompt_tokens": -1, "max_tokens": CONTEXT}, "truncate_prompt_tokens", "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_with_advice(
    checkpoint: Checkpoint, endpoint: Endpoint, body: dict[str, Any], param: str, advice: str
) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, endpoint, **body)
    assert raised.value.param == param
    assert advice in raised.value.message
    line = {"model": checkpoint.name, **INPUTS[endpoint], **body}
    with pytest.raises(ApiError, match=f"body.{param}"):
        from_line(checkpoint, endpoint, line, custom_id="a")


@pytest.mark.parametrize(
    ("field", "value"),
    [("web_search_options", {"a": 1}), ("audio", {"voice": "x"}), ("chat_template", "x"), ("documents", [1])],
)
def test_what_only_a_chat_may_ask_is_refused_with_advice(
    checkpoint: Checkpoint, field: str, value: object
) -> None:
    with pytest.raises(ApiError, match=f"{field}: is not supported by this server; .{{12}}"):
        asked(checkpoint, CHAT, **{field: value})


def fitted(checkpoint: Checkpoint, request: NewRequest) -> NewRequest:
    (found,) = fit(
        checkpoint, [request], default=SamplingParams(), max_prompt_bytes=10_000, name=lambda _: "prompt"
    )
    return found


def test_a_prompt_is_truncated_where_the_client_asks_for_it(checkpoint: Checkpoint) -> None:
    prompt = "x" * (CONTEXT + 9)
    with pytest.raises(ApiError, match="truncate_prompt_tokens: -1"):
        fitted(checkpoint, asked(checkpoint, COMPLETIONS, prompt="x" * 60, max_tokens=9))
    kept = asked(checkpoint, COMPLETIONS, prompt=prompt, max_tokens=9, truncate_prompt_tokens=-1)
    assert fitted(checkpoint, kept).num_prompt_tokens == CONTEXT - 9
    kept = asked(checkpoint, COMPLETIONS, prompt=prompt, max_tokens=9, truncate_prompt_tokens=20)
    assert fitted(checkpoint, kept).num_prompt_tokens == 20
    short = asked(checkpoint, COMPLETIONS, prompt="xy", max_tokens=9, truncate_prompt_tokens=20)
    assert fitted(checkpoint, short).num_prompt_tokens == 2


def test_a_model_answers_to_its_aliases(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, chat_template=TEMPLATE)
    aliases = Settings(model_aliases=f"gpt-4o-mini={directory.name}, other=elsewhere").model_aliases
    checkpoint = Checkpoint.load(directory, aliases=aliases)
    assert checkpoint.names == (directory.name, "gpt-4o-mini")
    own = asked(checkpoint, CHAT)
    assert asked(checkpoint, CHAT, model="gpt-4o-mini") == own
    line = {"model": "gpt-4o-mini", **INPUTS[CHAT]}
    assert from_line(checkpoint, CHAT, line, custom_id=None) == own
    with pytest.raises(ModelNotFoundError, match="HEADRACE_MODEL_ALIASES"):
        asked(checkpoint, CHAT, model="other")


@pytest.mark.parametrize("wrong", ["demo", "a=b=c", "=demo", "a=", "a=demo,a=other"])
def test_a_wrong_list_of_aliases_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"alias|ALIAS"):
        Settings(model_aliases=wrong)
