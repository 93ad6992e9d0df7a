from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import load_reference, reference_tokens
from worker.engine.choosing import row_reader
from worker.engine.engine import Engine
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.sequences.sequence import SequenceState
from worker.values.sampling import ParameterError, SamplingParams

PROMPT = (0, *(7 + (index * 37) % 300 for index in range(40)))


def assert_right(checkpoint: Path, completion: Completion, prompt: tuple[int, ...], count: int) -> None:
    assert completion.prompt_logprobs is not None
    assert len(completion.prompt_logprobs) == len(prompt) - 1
    with torch.inference_mode():
        expected = load_reference(checkpoint)(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    for row, token, one in zip(expected, prompt[1:], completion.prompt_logprobs, strict=True):
        assert one.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert one.rank == 1 + int((row > row[token]).sum())
        values, indices = row.topk(count)
        assert [token_id for token_id, _ in one.top] == indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [{}, {"max_tokens_per_step": 9}, {"max_num_sequences": 1}, {"enable_prefix_cache": False}],
    ids=["plain", "chunked", "one at a time", "no prefix cache"],
)
def test_they_are_the_models_own(tiny_llama: Path, overrides: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "MAX_LOGITS", 7 * 320)
    prompts = [PROMPT, PROMPT[:23], PROMPT[:1], (0, 9, 9), PROMPT]
    options = [{"prompt_logprobs": 3}, {"prompt_logprobs": 0}, {"prompt_logprobs": 2}, {}, {"logprobs": 1}]
    # Penalties and the temperature are no matter of the prompt's.
    options[0] |= {"repetition_penalty": 1.7, "logit_bias": ((5, 3.0),)}
    requests = [
        GenerationRequest(index, prompt, greedy(6, **extra))
        for index, (prompt, extra) in enumerate(zip(prompts, options, strict=True))
    ]
    completions = run(make_engine(tiny_llama, **overrides), requests)
    for index, count in enumerate((3, 0, 2)):
        assert_right(tiny_llama, completions[index], prompts[index], count)
    assert completions[3].prompt_logprobs is completions[4].prompt_logprobs is None
    for index in range(1, 5):
        assert completions[index].token_ids == reference_tokens(tiny_llama, prompts[index], 6)


def test_no_prefix_hit_skips_a_position_and_blocks_are_offered(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    asking = greedy(4, prompt_logprobs=1)
    for _ in range(2):
        (completion,) = run(engine, requests_for([PROMPT], asking))
        assert completion.num_cached_tokens == 0
        assert_right(tiny_llama, completion, PROMPT, 1)
    assert engine.stats.prefill_tokens == 2 * len(PROMPT)
    (hit,) = run(engine, requests_for([PROMPT], greedy(4)))
    assert hit.num_cached_tokens == 40
    assert hit.token_ids == completion.token_ids == reference_tokens(tiny_llama, PROMPT, 4)


def test_together_with_several_choices(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    params = greedy(4, prompt_logprobs=2, n=4, temperature=1.0, seed=3)
    (completion,) = run(engine, requests_for([PROMPT], params))
    assert_right(tiny_llama, completion, PROMPT, 2)
    assert len(completion.choices) == 4
    assert engine.stats.prefill_tokens == 41 + 3  # the others share the prompt


def _run_watched(engine: Engine, requests: list[GenerationRequest]) -> tuple[list[Completion], set[int]]:
    """Run requests; return also how many prompt logprobs the last one had whenever it was preempted."""
    for request in requests:
        engine.add(request)
    (sequence,) = engine._generations._open[requests[-1].id].sequences
    lengths: set[int] = set()
    completions: list[Completion] = []
    while engine.has_unfinished:
        was_running = sequence.state is SequenceState.RUNNING
        completions += engine.step().completions
        engine.check_integrity()
        if was_running and sequence.state is SequenceState.WAITING:
            lengths.add(min(40, sequence.next_row))
    return sorted(completions, key=lambda completion: int(str(completion.id))), lengths


@pytest.mark.parametrize(
    ("mate_length", "max_tokens", "is_partial"),
    [(2, 12, False), (21, 12, True), (21, 0, True)],
    ids=["after", "within", "without an output"],
)
def test_preempted_after_and_within_the_prompt(
    tiny_llama: Path, mate_length: int, max_tokens: int, is_partial: bool
) -> None:
    mates = [
        GenerationRequest(index, (0, *range(30 * index + 31, 30 * index + 30 + mate_length)), greedy(24))
        for index in range(5)
    ]
    requests = [*mates, GenerationRequest(5, PROMPT, greedy(max_tokens, prompt_logprobs=2))]
    # How many Blocks are too few at the right moment is the scheduler's to decide.
    for num_blocks in range(60, 20, -2):
        engine = make_engine(
            tiny_llama,
            num_blocks=num_blocks,
            max_model_len=60,
            max_tokens_per_step=8,
            max_num_sequences=6,
            admission="fifo",
        )
        completions, lengths = _run_watched(engine, requests)
        assert_right(tiny_llama, completions[5], PROMPT, 2)
        for request, completion in zip(requests, completions, strict=True):
            count = request.params.max_tokens
            assert completion.token_ids == reference_tokens(tiny_llama, tuple(request.prompt), count)
        if any(0 < length < 40 if is_partial else length == 40 for length in lengths):
            return
    raise AssertionError("never preempted at that moment")


@pytest.mark.parametrize(
    "overrides",
    [{}, {"max_tokens_per_step": 9}, {"max_num_sequences": 1}, {"enable_prefix_cache": False}],
    ids=["plain", "chunked", "one at a time", "no prefix cache"],
)
def test_without_an_output(tiny_llama: Path, overrides: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated, so a prompt may fill the context; what runs beside it is not disturbed."""
    monkeypatch.setattr(row_reader, "MAX_LOGITS", 7 * 320)
    engine = make_engine(tiny_llama, **overrides)
    longest = (0, *(5 + (index * 31) % 300 for index in range(engine.model_info.max_model_len - 1)))
    prompts = [longest, PROMPT, PROMPT[:1], PROMPT[:23], PROMPT]
    options = [greedy(0, prompt_logprobs=2, n=2), greedy(0, prompt_logprobs=0), greedy(0, prompt_logprobs=1)]
    options += [greedy(6), greedy(0, echo=True)]
    requests = [
        GenerationRequest(index, *one) for index, one in enumerate(zip(prompts, options, strict=True))
    ]
    completions = run(engine, requests)
    for index, count in enumerate((2, 0, 1)):
        assert_right(tiny_llama, completions[index], prompts[index], count)
    for index in (0, 1, 2, 4):
        one = completions[index]
        assert {(choice.text, choice.token_ids, choice.finish_reason) for choice in one.choices} == {
            ("", (), "length")
        }
        assert (one.num_output_tokens, one.num_prompt_tokens) == (0, len(prompts[index]))
        assert one.seconds.prefill > 0 == one.seconds.decode
    assert len(completions[0].choices) == 2
    assert completions[3].token_ids == reference_tokens(tiny_llama, prompts[3], 6)
    assert completions[4].prompt_logprobs is None
    assert not engine.has_unfinished
    assert engine.num_running == engine.num_waiting == 0


def test_cancelled_without_an_output(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_tokens_per_step=9)
    engine.add(GenerationRequest(0, PROMPT, greedy(0, prompt_logprobs=2)))
    engine.step()
    engine.cancel(0)
    (completion,) = engine.step().completions
    assert (completion.finish_reason, len(completion.prompt_logprobs or ())) == ("cancelled", 9)
    engine.check_integrity()
    assert not engine.has_unfinished


def test_what_is_not_finite_fails(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama)
    logits_of = engine._runner._model.logits
    monkeypatch.setattr(engine._runner._model, "logits", lambda hidden: logits_of(hidden) * float("nan"))
    (completion,) = run(engine, requests_for([PROMPT], greedy(0, prompt_logprobs=2)))
    assert completion.error == "the model's logits are not finite numbers"


def test_the_tokens_of_the_prompt_are_told_where_asked_for(tiny_llama: Path) -> None:
    asking = [greedy(2, return_token_ids=True), greedy(2, echo=True, prompt_logprobs=0), greedy(2, echo=True)]
    requests = [GenerationRequest(index, PROMPT, params) for index, params in enumerate(asking)]
    found = run(make_engine(tiny_llama), requests)
    assert [one.prompt_token_ids for one in found] == [PROMPT, PROMPT, None]


def test_nothing_asked_for() -> None:
    with pytest.raises(ParameterError, match="max_tokens must be at least 1, unless echo or prompt_logprobs"):
        SamplingParams(max_tokens=0).check()


def test_out_of_range() -> None:
    with pytest.raises(ParameterError, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=21).check()
