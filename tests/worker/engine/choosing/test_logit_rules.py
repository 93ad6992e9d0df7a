import math
from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import END, load_reference, tiny_tokenizer
from worker.engine.choosing.logit_rules import apply_rules
from worker.engine.requests.generation import GenerationRequest
from worker.engine.sequences.sequence import Sequence
from worker.values.sampling import ParameterError, SamplingParams

PROMPT = (0, 5, 9, 5)


def ruled(params: SamplingParams, output: list[int], logits: list[float]) -> list[float]:
    """One row's logits after the rules, beside a row that has none."""
    sequence = Sequence(0, 0, [1, 2, *output], 2, params, 0, frozenset({3}))
    plain = Sequence(1, 1, [1], 1, SamplingParams(), 0, frozenset({3}))
    before = torch.tensor([logits, logits])
    after = apply_rules(before.clone(), [sequence, plain])
    assert torch.equal(after[1], before[1])
    return after[0].tolist()


def test_each_rule_by_its_definition() -> None:
    logits = [1.0, 2.0, -2.0, 4.0, 0.0, 1.0]
    assert ruled(SamplingParams(repetition_penalty=2.0), [3], logits) == [1, 1, -4, 2, 0, 1]
    assert ruled(SamplingParams(frequency_penalty=0.5), [3, 3, 4], logits) == [1, 2, -2, 3, -0.5, 1]
    assert ruled(SamplingParams(presence_penalty=0.5), [3, 3, 4], logits) == [1, 2, -2, 3.5, -0.5, 1]
    assert ruled(SamplingParams(logit_bias=((0, 3.0), (4, -1.0))), [], logits) == [4, 2, -2, 4, -1, 1]
    assert ruled(SamplingParams(min_tokens=2), [4], logits) == [1, 2, -2, -math.inf, 0, 1]
    assert ruled(SamplingParams(min_tokens=2), [4, 4], logits) == logits


def test_rules_add_up() -> None:
    params = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.25, logit_bias=((5, 1.0),)
    )
    assert ruled(params, [5, 5], [0.0, 0.0, 0.0, 0.0, 0.0, 8.0])[5] == 8 / 2 - 2 * 1.0 - 0.25 + 1


def test_no_rules_leave_logits_as_they_are() -> None:
    logits = torch.zeros(1, 4, dtype=torch.bfloat16)
    sequence = Sequence(0, 0, [1], 1, SamplingParams(), 0, frozenset())
    assert apply_rules(logits, [sequence]) is logits


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": 2.5},
        {"presence_penalty": -2.5},
        {"logit_bias": ((1, math.nan),)},
        {"logprobs": 21},
    ],
    ids=str,
)
def test_out_of_range(wrong: dict) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        SamplingParams(**wrong).check()


def test_repetition_penalty_as_transformers_has_it(tiny_llama: Path) -> None:
    params = greedy(20, repetition_penalty=1.7)
    (completion,) = run(make_engine(tiny_llama), requests_for([PROMPT], params))
    expected = load_reference(tiny_llama).generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
        max_new_tokens=20,
        min_new_tokens=20,
        eos_token_id=None,
        pad_token_id=END,
        do_sample=False,
        repetition_penalty=1.7,
    )
    assert completion.token_ids == tuple(expected[0, len(PROMPT) :].tolist())


def test_min_tokens_holds_back_the_end(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    bias = ((END, 100.0),)
    for min_tokens in (0, 1, 5):
        params = greedy(20, ignore_eos=False, min_tokens=min_tokens, logit_bias=bias)
        (completion,) = run(engine, requests_for([PROMPT], params))
        assert len(completion.token_ids) == min_tokens + 1
        assert completion.token_ids[-1] == END
        assert completion.finish_reason == "stop"


def test_min_tokens_holds_back_stop_strings(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    (free,) = run(engine, requests_for([PROMPT], greedy(24)))
    pieces = [tiny_tokenizer().decode([token]) for token in free.token_ids]
    early = next(i for i, piece in enumerate(pieces) if piece.isascii() and piece.strip())
    stop = (pieces[early], pieces[15])
    for min_tokens in (0, early + 1, early + 2, 16, 17):
        (completion,) = run(engine, requests_for([PROMPT], greedy(24, stop=stop, min_tokens=min_tokens)))
        index = next(
            (i for i in range(max(0, min_tokens - 1), 24) if any(one in pieces[i] for one in stop)), None
        )
        assert completion.finish_reason == ("length" if index is None else "stop")
        assert len(completion.token_ids) == (24 if index is None else index + 1)
        kept = free.text if index is None else tiny_tokenizer().decode(list(free.token_ids[: index + 1]))
        assert kept.startswith(completion.text)
        assert len(completion.text) >= len(
            tiny_tokenizer().decode(list(free.token_ids[: max(0, min_tokens - 1)]))
        )


def test_ids_outside_the_vocabulary_are_that_requests_outcome(tiny_llama: Path) -> None:
    for params in (greedy(2, logit_bias=((10_000, 1.0),)), greedy(2, stop_token_ids=(-1,))):
        (completion,) = run(make_engine(tiny_llama), requests_for([PROMPT], params))
        assert completion.finish_reason == "error"
        assert "outside 0.." in str(completion.error)


@pytest.mark.parametrize(
    "overrides", [{}, {"num_blocks": 10, "max_model_len": 40}], ids=["plain", "preempted"]
)
def test_logprobs_are_the_models_own(tiny_llama: Path, overrides: dict) -> None:
    prompts = [PROMPT, (0, 7), (0, 8, 8)]
    options = [{"logprobs": 3}, {"logprobs": 0, "presence_penalty": 1.5}, {}]
    requests = [
        GenerationRequest(index, prompt, greedy(16, **extra))
        for index, (prompt, extra) in enumerate(zip(prompts, options, strict=True))
    ]
    engine = make_engine(tiny_llama, **overrides)
    completions = run(engine, requests)
    assert (engine.stats.preemptions > 0) is bool(overrides)
    assert completions[2].logprobs is None
    for prompt, completion, count in zip(prompts[:2], completions[:2], (3, 0), strict=True):
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids) == 16
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *completion.token_ids]])
            expected = load_reference(tiny_llama)(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for row, token, one in zip(expected, completion.token_ids, completion.logprobs, strict=True):
            assert one.logprob == pytest.approx(row[token].item(), abs=1e-4)
            values, indices = row.topk(count)
            assert [token_id for token_id, _ in one.top] == indices.tolist()
            assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)
