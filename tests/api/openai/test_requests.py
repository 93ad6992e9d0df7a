from pathlib import Path
from typing import Any

import pytest

from api.errors import ApiError, ModelNotFoundError
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import NO_LIMIT, from_line, to_request
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.store.requests.requests import NewRequest
from worker.values.requests import EmbeddingParams
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

CHAT, COMPLETIONS, EMBEDDINGS, _ = Endpoint
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path, chat_template=TEMPLATE))


def asked(checkpoint: Checkpoint, endpoint: Endpoint, **body: Any) -> NewRequest:
    return to_request(checkpoint, read_body(endpoint, {"model": checkpoint.name, **body}))


def test_a_chat_becomes_a_rendered_prompt_with_openais_defaults(checkpoint: Checkpoint) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "d"},
    ]
    assert asked(checkpoint, CHAT, messages=messages) == NewRequest(
        prompt="<system>be brief<user>a\nb<assistant>c<user>d<assistant>",
        max_tokens=NO_LIMIT,
        params=SamplingParams(max_tokens=NO_LIMIT, temperature=1.0),
        add_special_tokens=False,
        model=checkpoint.model,
    )


def test_the_newer_name_of_max_tokens_counts(checkpoint: Checkpoint) -> None:
    """Clients that serve old and new servers send both."""
    assert asked(checkpoint, CHAT, messages=HELLO, max_tokens=9, max_completion_tokens=7).max_tokens == 7


def test_every_option_of_a_chat_counts(checkpoint: Checkpoint) -> None:
    found = asked(
        checkpoint,
        CHAT,
        messages=HELLO,
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        n=2,
        stop="x",
        seed=3,
        logprobs=True,
        top_logprobs=4,
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias={"9": 5},
        response_format={"type": "json_object"},
        min_p=0.25,
        top_k=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert found.is_streamed
    assert found.params == SamplingParams(
        max_tokens=7,
        must_fit=True,
        temperature=0,
        top_p=0.5,
        n=2,
        stop=("x",),
        seed=3,
        logprobs=4,
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias=((9, 5.0),),
        format=OutputFormat(FormatKind.JSON_OBJECT),
        min_p=0.25,
        top_k=6,
    )


def test_logprobs_of_a_chat_need_no_alternatives(checkpoint: Checkpoint) -> None:
    params = asked(checkpoint, CHAT, messages=HELLO, logprobs=True).params
    assert isinstance(params, SamplingParams)
    assert params.logprobs == 0


@pytest.mark.parametrize(
    ("prompt", "text", "inputs"),
    [
        ("one", "one", None),
        (["one", "two"], "", ("one", "two")),
        ([5, 6], "", ((5, 6),)),
        ([[5], [6, 7]], "", ((5,), (6, 7))),
    ],
)
def test_prompts_come_in_four_forms(checkpoint: Checkpoint, prompt: Any, text: str, inputs: Any) -> None:
    found = asked(checkpoint, COMPLETIONS, prompt=prompt, logprobs=2)
    assert (found.prompt, found.inputs, found.max_tokens) == (text, inputs, 16)
    assert isinstance(found.params, SamplingParams)
    assert found.params.logprobs == 2
    embedded = asked(checkpoint, EMBEDDINGS, input=prompt, encoding_format="base64", dimensions=3)
    assert (embedded.prompt, embedded.inputs) == (text, inputs)
    assert embedded.params == EmbeddingParams(dimensions=3, encoding="base64")


def test_what_changes_no_output_is_accepted(checkpoint: Checkpoint) -> None:
    found = asked(
        checkpoint,
        CHAT,
        messages=[{**HELLO[0], "name": "me"}],
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="k",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="auto",
        modalities=["text"],
        audio=None,
    )
    assert found == asked(checkpoint, CHAT, messages=HELLO)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HELLO, "modalities": ["audio"]}, "modalities[0]"),
        (CHAT, {"messages": HELLO, "reasoning_effort": "extreme"}, "reasoning_effort"),
        (CHAT, {"messages": HELLO, "web_search_options": {"a": 1}}, "web_search_options"),
        (CHAT, {"messages": HELLO, "tempreature": 1}, "tempreature"),
        (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"messages": HELLO, "logprobs": 3}, "logprobs"),
        (CHAT, {"messages": HELLO, "stream_options": {}}, "stream_options"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        (
            CHAT,
            {"messages": HELLO, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
        ),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": "x", "echo": 1}, "echo"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HELLO, "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix"),
        (COMPLETIONS, {"prompt": "x", "n": 3, "best_of": 2}, "best_of"),
        (EMBEDDINGS, {"input": []}, "input"),
        (EMBEDDINGS, {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        (EMBEDDINGS, {"input": "x", "temperature": 1}, "temperature"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    checkpoint: Checkpoint, endpoint: Endpoint, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, endpoint, **body)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)
    with pytest.raises(ApiError) as raised:
        from_line(checkpoint, endpoint, {"model": checkpoint.name, **body}, custom_id="a", path="line 3")
    assert str(raised.value.param).startswith(f"line 3.{param}")


def test_an_echo_and_tokens(checkpoint: Checkpoint) -> None:
    """The logprobs that go with an echo are asked for once; more may be asked for of the prompt alone."""
    found = asked(checkpoint, COMPLETIONS, prompt="x", echo=True, logprobs=2, max_tokens=0, suffix=None)
    expected = SamplingParams(
        max_tokens=0, must_fit=True, temperature=1, logprobs=2, prompt_logprobs=2, echo=True
    )
    assert (found.params, found.max_tokens) == (expected, 0)
    assert SamplingParams.from_json(expected.to_json()) == expected
    own = asked(checkpoint, COMPLETIONS, prompt="x", echo=True, logprobs=2, prompt_logprobs=5).params
    assert isinstance(own, SamplingParams)
    assert (own.logprobs, own.prompt_logprobs) == (2, 5)
    plain = asked(checkpoint, COMPLETIONS, prompt="x", echo=False, logprobs=2).params
    assert plain == SamplingParams(max_tokens=16, temperature=1, logprobs=2)
    wanted = {"return_token_ids": True, "return_tokens_as_token_ids": True, "prompt_logprobs": 0}
    for endpoint, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "x"})):
        params = asked(checkpoint, endpoint, **body, **wanted).params
        assert isinstance(params, SamplingParams)
        assert (params.return_token_ids, params.return_tokens_as_token_ids) == (True, True)
        assert params.prompt_logprobs == 0


def test_what_best_of_keeps_cannot_be_streamed(checkpoint: Checkpoint) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, COMPLETIONS, prompt="x", stream=True, best_of=2)
    assert raised.value.param == "best_of"


@pytest.mark.parametrize(("endpoint", "body"), [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "x"})])
def test_logprobs_of_a_prompt_cannot_be_streamed(
    checkpoint: Checkpoint, endpoint: Endpoint, body: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, endpoint, **body, prompt_logprobs=0, stream=True)
    assert raised.value.param == "prompt_logprobs"


def test_another_model_is_not_found(checkpoint: Checkpoint) -> None:
    with pytest.raises(ModelNotFoundError) as raised:
        asked(checkpoint, CHAT, messages=HELLO, model="gpt-4")
    assert (raised.value.param, raised.value.code) == ("model", "model_not_found")


def test_a_line_of_a_batch_is_not_streamed(checkpoint: Checkpoint) -> None:
    body = {"model": checkpoint.name, "prompt": "x"}
    assert from_line(checkpoint, COMPLETIONS, body, custom_id="a").custom_id == "a"
    with pytest.raises(ApiError, match="cannot be streamed"):
        from_line(checkpoint, COMPLETIONS, {**body, "stream": True}, custom_id="a")


def test_tokens_are_spelled_as_they_stand_in_a_text(checkpoint: Checkpoint) -> None:
    text = "é 🙂\n"
    ids = checkpoint._tokenizer.encode(text).ids
    assert b"".join(checkpoint.token_bytes(token) for token in ids) == text.encode()
