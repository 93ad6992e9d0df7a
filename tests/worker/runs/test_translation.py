from dataclasses import fields, replace
from typing import Any

import pytest

from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.runs.translation import is_cancelled, to_engine, to_result
from worker.store.requests.requests import ShardRequest
from worker.values.caching import request_digest
from worker.values.logprobs import TokenLogprob
from worker.values.outcomes import FinishReason, Outcome
from worker.values.parsing import Family, Parsing
from worker.values.requests import EmbeddingParams, Params, Pooling, ScoringParams, kind_of, params_from_json
from worker.values.results import Choice, ContinuationScore, DeviceSeconds, Payload, RequestError, to_floats
from worker.values.sampling import FormatKind, Optimization, OutputFormat, SamplingParams
from worker.values.thinking import Thinking, ThinkingStyle

# Every field with a value that is not its default.
EVERYTHING = SamplingParams(
    max_tokens=9,
    must_fit=True,
    truncate_prompt_tokens=5,
    temperature=0.3,
    top_p=0.8,
    top_k=7,
    min_p=0.1,
    seed=-5,
    stop=("a", "b"),
    stop_token_ids=(3, 4),
    ignore_eos=True,
    min_tokens=2,
    include_stop_str_in_output=True,
    skip_special_tokens=False,
    repetition_penalty=1.2,
    frequency_penalty=-0.5,
    presence_penalty=0.6,
    logit_bias=((5, -1.5), (6, 100.0)),
    logprobs=2,
    prompt_logprobs=0,
    n=2,
    best_of=3,
    echo=True,
    return_token_ids=True,
    return_tokens_as_token_ids=True,
    optimization=Optimization.BASIC,
    parsing=Parsing(Family.HERMES, ("f",), thinking=Thinking(ThinkingStyle.TAGS, is_open=True)),
    thinking_budget=5,
    format=OutputFormat(FormatKind.JSON_SCHEMA, '{"type": "object", "properties": {"b": {}, "a": {}}}'),
)


def request(params: Params = EVERYTHING, **changes: object) -> ShardRequest:
    defaults = ShardRequest(7, 0, ("one",), True, False, 9, params)
    return replace(defaults, **changes)  # type: ignore[arg-type]


def completion(index: int, *texts: str, **changes: object) -> Completion:
    choices = tuple(Choice(text, FinishReason.STOP, token_ids=(5, 6)) for text in texts)
    return replace(Completion((7, index), choices, 3, 1, 2 * len(texts)), **changes)  # type: ignore[arg-type]


def test_every_sampling_field_is_covered_here() -> None:
    assert [
        field.name for field in fields(EVERYTHING) if getattr(EVERYTHING, field.name) == field.default
    ] == []


@pytest.mark.parametrize(
    "params",
    [
        EVERYTHING,
        SamplingParams(),
        EmbeddingParams(Pooling.MEAN, normalize=False, dimensions=8, encoding="base64"),
        ScoringParams((" yes", " no")),
    ],
)
def test_parameters_survive_the_store(params: Params) -> None:
    assert params_from_json(kind_of(params), params.to_json()) == params


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    assert SamplingParams(top_k=3).to_json() == {"top_k": 3}


def test_the_digests_of_stored_requests_stay_as_they_are() -> None:
    """Responses in the cache are found by them, also after an upgrade."""
    newer = {
        "truncate_prompt_tokens",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "parsing",
        "thinking_budget",
        "echo",
        "return_token_ids",
        "return_tokens_as_token_ids",
    }
    defaults = {field.name: field.default for field in fields(SamplingParams) if field.name in newer}
    older = replace(EVERYTHING, **defaults)
    options = replace(older, format=OutputFormat(FormatKind.CHOICE, ("yes", "no")))
    digests = [
        request_digest(("one", (1, 2)), params, max_tokens=9, add_special_tokens=True)
        for params in (older, options, ScoringParams((" a",)))
    ]
    assert [digest and digest.hex() for digest in digests] == [
        "a34c7412079e59b808a90c13e23f004c",
        "bff17ff1461564b3a55152c3a4cf2177",
        "0f483bc86b1c080d1b7b85f2e523ba49",
    ]


def test_every_sampling_field_reaches_the_engine() -> None:
    (sent,) = to_engine(request(), "batch_1", job="batch_1")
    assert isinstance(sent, GenerationRequest)
    assert (sent.id, sent.prompt, sent.job, sent.add_special_tokens) == ((7, 0), "one", "batch_1", True)
    assert sent.params == EVERYTHING


def test_what_is_drawn_is_drawn_alike_by_a_second_run_and_by_nothing_else() -> None:
    def seeds(batch_id: str, request_id: int, **params: Any) -> list[int | None]:
        asked = request(SamplingParams(**params), id=request_id, prompts=("a", "a"))
        sent = to_engine(asked, batch_id)
        return [one.params.seed for one in sent if isinstance(one, GenerationRequest)]

    assert seeds("batch_1", 7, temperature=1.0) == seeds("batch_1", 7, temperature=1.0)
    all_of_them = [seeds(batch, number) for batch in ("batch_1", "batch_2") for number in (7, 8)]
    assert len({seed for several in all_of_them for seed in several}) == 8
    assert seeds("batch_1", 7, seed=5) == [5, 5]
    assert seeds("batch_1", 7, temperature=0.0) == [None, None]


def test_a_context_that_cuts_max_tokens_cuts_min_tokens_too() -> None:
    (sent,) = to_engine(request(max_tokens=1), "batch_1")
    assert isinstance(sent, GenerationRequest)
    assert (sent.params.max_tokens, sent.params.min_tokens) == (1, 1)


def test_a_parameter_out_of_its_range_is_the_requests_error() -> None:
    with pytest.raises(InvalidRequestError, match="top_p is out of range"):
        to_engine(request(SamplingParams(top_p=2.0)), "batch_1")


def test_a_schema_that_was_stored_as_an_object_is_a_text_now() -> None:
    stored = {"format": {"kind": "json_schema", "source": {"b": {}, "a": {}}}}
    wanted = SamplingParams.from_json(stored).format
    assert wanted == OutputFormat(FormatKind.JSON_SCHEMA, '{"b": {}, "a": {}}')


def test_readings_reach_the_engine() -> None:
    params = EmbeddingParams(Pooling.MEAN, normalize=False, dimensions=8)
    assert to_engine(request(params, prompts=("a", (1, 2))), "batch_1") == [
        EmbeddingRequest((7, 0), "a", params),
        EmbeddingRequest((7, 1), (1, 2), params),
    ]
    assert to_engine(request(ScoringParams((" x",))), "batch_1") == [ScoringRequest((7, 0), "one", (" x",))]


def test_a_plain_result_has_no_payload_but_the_stop_string_that_ended_it() -> None:
    result = to_result(request(SamplingParams()), [completion(0, "text")])
    assert (result.output, result.finish_reason, result.payload) == ("text", "stop", None)
    assert (result.num_prompt_tokens, result.num_cached_tokens, result.num_output_tokens) == (3, 1, 2)
    whole = completion(0, "text")
    stopped = replace(whole, choices=(replace(whole.choices[0], stop="\n\n"),))
    payload = to_result(request(SamplingParams()), [stopped]).payload
    assert payload == Payload(stop="\n\n")
    assert Payload.from_json(payload.to_json()) == payload


def test_guessed_tokens_are_those_of_all_prompts() -> None:
    done = [completion(index, "a", num_guessed_tokens=5, num_right_tokens=index) for index in (1, 2)]
    payload = to_result(request(prompts=("one", "two")), done).payload
    assert payload is not None
    assert (payload.num_guessed_tokens, payload.num_right_tokens) == (10, 3)
    assert Payload.from_json(payload.to_json()) == payload


def test_choices_of_several_prompts_follow_each_other() -> None:
    result = to_result(request(prompts=("one", "two")), [completion(0, "a", "b"), completion(1, "c", "d")])
    assert result.payload is not None
    assert [choice.text for choice in result.payload.choices] == ["a", "b", "c", "d"]
    assert (result.output, result.num_prompt_tokens, result.num_output_tokens) == ("a", 6, 8)


@pytest.mark.parametrize(
    ("is_too_long", "code"), [(True, "context_length_exceeded"), (False, "generation_failed")]
)
def test_one_failed_prompt_fails_the_request(is_too_long: bool, code: str) -> None:
    parts = [completion(0, "a"), Completion.failed((7, 1), "no", is_too_long=is_too_long)]
    result = to_result(request(prompts=("one", "two")), parts)
    assert (result.outcome, result.output, result.num_output_tokens) == (Outcome.FAILED, None, 2)
    assert result.error == RequestError(code, "no")


def test_logprobs_come_along_and_survive_the_store() -> None:
    logprobs = (TokenLogprob(5, -0.5, ((5, -0.5), (9, -1.0))), TokenLogprob(6, float("-inf")))
    choice = Choice("a\x00", FinishReason.LENGTH, logprobs, token_ids=(5, 6))
    prompt_logprobs = (TokenLogprob(8, -0.5, ((5, -0.5), (9, -1.0))),)
    payload = to_result(
        request(), [completion(0, choices=(choice,), prompt_logprobs=prompt_logprobs)]
    ).payload
    assert payload is not None
    assert (payload.choices, payload.prompt_logprobs) == ((choice,), (prompt_logprobs,))
    stored = Payload.from_json(payload.to_json())
    assert stored.prompt_logprobs == payload.prompt_logprobs
    finite = (logprobs[0], TokenLogprob(6, -9999.0))
    assert stored.choices == (Choice("a\ufffd", FinishReason.LENGTH, finite, (5, 6)),)


def test_readings_become_results_and_survive_the_store() -> None:
    embedded = to_result(request(EmbeddingParams()), [Embedding((7, 0), (0.5, -0.25), 3, 0)])
    assert embedded.payload is not None
    assert to_floats(embedded.payload.embeddings[0]) == [0.5, -0.25]
    assert (embedded.output, embedded.num_output_tokens) == (None, 0)
    found = Scores((7, 0), (ContinuationScore((-1.0, -2.0), is_greedy=True),), 3, 0)
    scored = to_result(request(ScoringParams((" x",))), [found])
    assert scored.payload == Payload(scores=(ContinuationScore((-1.0, -2.0), is_greedy=True),))
    for result in (embedded, scored):
        assert result.payload is not None
        assert Payload.from_json(result.payload.to_json()) == result.payload


def test_readings_bring_their_device_seconds() -> None:
    paid = [Embedding((7, i), (0.5,), 3, 0, seconds=DeviceSeconds(1.0, 0.0, 0.25)) for i in range(2)]
    assert to_result(request(EmbeddingParams()), paid).seconds == DeviceSeconds(2.0, 0.0, 0.5)
    cut = Scores((7, 0), (), 3, 0, is_cancelled=True, seconds=DeviceSeconds(1.0))
    assert to_result(request(ScoringParams((" x",))), [cut]).seconds == DeviceSeconds(1.0)


def test_what_was_cancelled_is_no_result() -> None:
    assert is_cancelled(Embedding((7, 0), (), 3, 0, is_cancelled=True))
    cancelled = Choice("a", FinishReason.CANCELLED, token_ids=(5,))
    assert is_cancelled(completion(0, choices=(cancelled,)))
    assert not is_cancelled(completion(0, "a"))
