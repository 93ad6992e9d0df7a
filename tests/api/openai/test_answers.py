"""The bodies, read back by the types of OpenAI's own client."""

import base64
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion

from api.generate.outputs import failure
from api.inputs.checkpoint import Checkpoint
from api.openai.answers import to_answer, to_model
from api.openai.bodies import Endpoint
from tests.fixtures.checkpoint import CONTEXT, write_checkpoint
from worker.contract.processes import ModelState
from worker.store.requests.result_views import ResultView
from worker.values.caching import Source
from worker.values.logprobs import TokenLogprob
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice, DeviceSeconds, Payload

CHAT, COMPLETIONS, EMBEDDINGS, _ = Endpoint
RESULT = ResultView(
    request_id=1,
    sequence=1,
    position=4,
    custom_id=None,
    outcome=Outcome.COMPLETED,
    output="hi",
    finish_reason="length",
    payload=None,
    num_prompt_tokens=3,
    num_cached_tokens=1,
    num_output_tokens=7,
    error_code=None,
    error_message=None,
    source=Source.ENGINE,
    similarity=None,
    seconds=DeviceSeconds(),
    accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    started_at=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.load(write_checkpoint(tmp_path))


def test_an_answer_of_another_prompt_says_so(checkpoint: Checkpoint) -> None:
    near = replace(RESULT, source=Source.SEMANTIC_CACHE, similarity=0.97)
    said = to_answer(checkpoint, CHAT, near, batch_id="batch_ab")
    assert (said["source"], said["similarity"]) == ("semantic_cache", 0.97)
    ChatCompletion.model_validate(said)
    assert "source" not in to_answer(checkpoint, CHAT, RESULT, batch_id="batch_ab")


def test_a_chat(checkpoint: Checkpoint) -> None:
    found = ChatCompletion.model_validate(to_answer(checkpoint, CHAT, RESULT, batch_id="batch_ab"))
    assert (found.id, found.object, found.model) == ("chatcmpl-ab-4", "chat.completion", checkpoint.name)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("hi", "length")
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (3, 7, 10)
    assert found.usage.prompt_tokens_details is not None
    assert found.usage.prompt_tokens_details.cached_tokens == 1
    assert found.created == 1767225600


def test_choices_with_logprobs(checkpoint: Checkpoint) -> None:
    first, second = (checkpoint._tokenizer.encode(text).ids[0] for text in "ab")
    partial = checkpoint._tokenizer.encode("é").ids[0]
    logprobs = (TokenLogprob(first, -0.5, ((first, -0.5), (second, -1.0))), TokenLogprob(partial, -2.0))
    payload = Payload((Choice("aé", FinishReason.STOP, logprobs), Choice("b", FinishReason.LENGTH, ())))
    result = replace(RESULT, payload=payload)
    chat = ChatCompletion.model_validate(to_answer(checkpoint, CHAT, result, batch_id="batch_ab"))
    assert [choice.index for choice in chat.choices] == [0, 1]
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    told, cut = chat.choices[0].logprobs.content
    assert (told.token, told.logprob, told.bytes) == ("a", -0.5, [97])
    assert [(other.token, other.logprob) for other in told.top_logprobs] == [("a", -0.5), ("b", -1.0)]
    assert (cut.token, cut.bytes, cut.top_logprobs) == ("\ufffd", [0xC3], [])
    text = Completion.model_validate(to_answer(checkpoint, COMPLETIONS, result, batch_id="batch_ab"))
    assert [choice.text for choice in text.choices] == ["aé", "b"]
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["a", "\ufffd"]
    assert text.choices[0].logprobs.top_logprobs == [{"a": -0.5, "b": -1.0}, {"\ufffd": -2.0}]
    assert text.choices[0].logprobs.text_offset == [0, 1]


def test_the_token_that_was_drawn_is_among_the_likeliest(checkpoint: Checkpoint) -> None:
    a, b, c = (checkpoint._tokenizer.encode(text).ids[0] for text in "abc")
    first, second = checkpoint._tokenizer.encode("é").ids  # two tokens that are spelled alike
    logprobs = (
        TokenLogprob(c, -3.0, ((a, -0.5), (b, -1.0))),
        TokenLogprob(first, -0.2, ((first, -0.2), (second, -4.0))),
        TokenLogprob(second, -5.0, ((first, -0.1),)),
    )
    result = replace(RESULT, payload=Payload((Choice("c", FinishReason.STOP, logprobs),)))
    text = Completion.model_validate(to_answer(checkpoint, COMPLETIONS, result, batch_id="batch_ab"))
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.top_logprobs == [
        {"a": -0.5, "b": -1.0, "c": -3.0},
        {"\ufffd": -0.2, f"token_id:{second}": -4.0},
        {f"token_id:{first}": -0.1, "\ufffd": -5.0},
    ]
    chat = ChatCompletion.model_validate(to_answer(checkpoint, CHAT, result, batch_id="batch_ab"))
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content or []
    assert [[one.token for one in token.top_logprobs] for token in content] == [
        ["a", "b", "c"],
        ["\ufffd", "\ufffd"],
        ["\ufffd", "\ufffd"],
    ]


def test_an_echo(checkpoint: Checkpoint) -> None:
    """Each choice begins with its prompt, whose first token has no logprob; both are one text."""
    a, b, space = checkpoint.encode("ab ", add_special_tokens=True)
    cut = checkpoint.encode("é", add_special_tokens=True)
    prompt = (TokenLogprob(b, -1.5, ((a, -0.5),), 2),)
    payload = Payload(
        (
            Choice("é", FinishReason.STOP, tuple(TokenLogprob(token, -1.0) for token in cut)),
            Choice("b", FinishReason.LENGTH, (TokenLogprob(b, -2.0),)),
            Choice("", FinishReason.LENGTH, ()),
            Choice("", FinishReason.LENGTH, ()),
        ),
        prompt_logprobs=(prompt, prompt),
        prompt_token_ids=((a, b), (space, b)),
        echoes=("ab", (space, b)),
    )
    assert Payload.from_json(json.loads(json.dumps(payload.to_json()))) == payload
    result = replace(RESULT, payload=payload)
    choices = to_answer(checkpoint, COMPLETIONS, result, batch_id="batch_ab")["choices"]
    assert [choice["text"] for choice in choices] == ["abé", "abb", " b", " b"]
    first, second, third, _ = (choice["logprobs"] for choice in choices)
    assert first == {
        "tokens": ["a", "b", "\ufffd", "\ufffd"],
        "token_logprobs": [None, -1.5, -1.0, -1.0],
        "top_logprobs": [None, {"a": -0.5, "b": -1.5}, {"\ufffd": -1.0}, {"\ufffd": -1.0}],
        "text_offset": [0, 1, 2, 2],
    }
    assert (second["text_offset"], third["text_offset"]) == ([0, 1, 2], [0, 1])
    assert (third["tokens"], third["token_logprobs"]) == ([" ", "b"], [None, -1.5])
    assert choices[0].keys() == {"index", "text", "logprobs", "finish_reason"}
    numbers = replace(result, payload=replace(payload, has_tokens_as_ids=True))
    said = to_answer(checkpoint, COMPLETIONS, numbers, batch_id="batch_ab")["choices"][0]["logprobs"]
    assert said["tokens"] == [f"token_id:{token}" for token in (a, b, *cut)]
    assert said["top_logprobs"][1] == {f"token_id:{a}": -0.5, f"token_id:{b}": -1.5}
    assert said["text_offset"] == first["text_offset"]


def test_an_echo_alone(checkpoint: Checkpoint) -> None:
    payload = Payload((Choice("!", FinishReason.STOP),), echoes=("ab",))
    body = to_answer(checkpoint, COMPLETIONS, replace(RESULT, payload=payload), batch_id="batch_ab")
    assert body["choices"] == [{"index": 0, "text": "ab!", "logprobs": None, "finish_reason": "stop"}]


def test_tokens_of_prompts_and_choices(checkpoint: Checkpoint) -> None:
    """Where vLLM has them: beside the choice of a completion, and at the top of a chat."""
    a, b = checkpoint.encode("ab", add_special_tokens=True)
    top = ((a, -0.5),)
    payload = Payload(
        (Choice("b", FinishReason.STOP, token_ids=(b, 0)), Choice("", FinishReason.LENGTH)),
        prompt_logprobs=((TokenLogprob(b, -3.5, top, 9), TokenLogprob(a, -0.5, top, 1)), ()),
        prompt_token_ids=((a, b, a), (b,)),
        has_token_ids=True,
    )
    assert Payload.from_json(json.loads(json.dumps(payload.to_json()))) == payload
    result = replace(RESULT, payload=payload)
    said = to_answer(checkpoint, COMPLETIONS, result, batch_id="batch_ab")["choices"]
    assert [choice["token_ids"] for choice in said] == [[b, 0], []]
    assert [choice["prompt_token_ids"] for choice in said] == [[a, b, a], [b]]
    likely = {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
    assert said[0]["prompt_logprobs"] == [
        None,
        {str(b): {"logprob": -3.5, "rank": 9, "decoded_token": "b"}, str(a): likely},
        {str(a): likely},
    ]
    assert list(said[0]["prompt_logprobs"][1]) == [str(b), str(a)]  # its own first
    assert said[1]["prompt_logprobs"] == [None]
    one = replace(payload, choices=payload.choices[:1])
    chat = to_answer(checkpoint, CHAT, replace(RESULT, payload=one), batch_id="batch_ab")
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == ([a, b, a], [b, 0])
    assert chat["prompt_logprobs"] == said[0]["prompt_logprobs"]


@pytest.mark.parametrize("is_base64", [False, True])
def test_embeddings(checkpoint: Checkpoint, is_base64: bool) -> None:
    payload = Payload(embeddings=(struct.pack("<2f", 0.5, -1), struct.pack("<1f", 2)), is_base64=is_base64)
    body = to_answer(checkpoint, EMBEDDINGS, replace(RESULT, payload=payload), batch_id="batch_ab")
    vectors = [one["embedding"] for one in body["data"]]
    if is_base64:
        assert [base64.b64decode(vector) for vector in vectors] == list(payload.embeddings)
    else:
        found = CreateEmbeddingResponse.model_validate(body)
        assert [one.embedding for one in found.data] == [[0.5, -1.0], [2.0]]
        assert found.usage.prompt_tokens == 3


def test_models(checkpoint: Checkpoint) -> None:
    found = to_model(checkpoint, "gpt-4", ModelState.LOADED)
    assert Model.model_validate(found.model_dump()).id == "gpt-4"
    assert (found.root, found.parent) == (checkpoint.name, None)
    assert found.max_model_len == CONTEXT


@pytest.mark.parametrize(
    ("code", "status"),
    [("generation_failed", 400), ("context_length_exceeded", 400), ("attempts_exhausted", 500)],
)
def test_a_failed_request_says_whose_fault_it_was(code: str, status: int) -> None:
    error = failure(replace(RESULT, outcome=Outcome.FAILED, error_code=code, error_message="why"))
    assert error is not None
    assert (error.status, error.message, error.code) == (status, "why", code)
    assert failure(RESULT) is None
