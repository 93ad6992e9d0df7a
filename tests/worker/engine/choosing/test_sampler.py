"""Distributions by counts, from 10 to 100,000, against exact probabilities; the seeds are fixed."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.fixtures.statistics import assert_follows, chi_square_p
from worker.engine.choosing.logit_rules import apply_rules
from worker.engine.choosing.sampler import SamplingInputs, build_sampling_input, mixed, sample, uniforms
from worker.engine.sequences.sequence import Sequence
from worker.values.sampling import SamplingParams


def make_sequence(params: SamplingParams, seed: int, length: int = 1) -> Sequence:
    return Sequence(seed, seed, [0] * length, 1, params, seed, frozenset())


def draw(logits: torch.Tensor, params: SamplingParams, count: int) -> list[int]:
    sequences = [make_sequence(params, seed) for seed in range(count)]
    return sample(logits.expand(count, -1), build_sampling_input(sequences))


def expected(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The distribution by definition: temperature, then top-k, then top-p of what is left, then min-p."""
    probabilities = torch.softmax(logits.double() / params.temperature, dim=-1).numpy()
    order = np.argsort(-probabilities, kind="stable")
    kept = order[: params.top_k or len(order)]
    before = np.cumsum(probabilities[kept]) - probabilities[kept]
    kept = kept[before < params.top_p * probabilities[kept].sum()]
    kept = kept[probabilities[kept] >= params.min_p * probabilities[order[0]]]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


COUNTS = (10, 100, 1000, 10_000, 100_000)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=2.0, min_p=0.2),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.0, top_p=0.01),
        SamplingParams(temperature=1.5, top_k=12, top_p=0.8, min_p=0.1),
    ],
    ids=str,
)
def test_distribution(params: SamplingParams, count: int) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 2
    assert_follows(draw(logits, params, count), expected(logits, params))


@pytest.mark.parametrize("count", [1000, 20_000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=400),
        SamplingParams(temperature=1.0, top_k=400, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=400, min_p=0.3),
    ],
    ids=str,
)
def test_distribution_past_the_first_candidates(params: SamplingParams, count: int) -> None:
    logits = torch.randn(700, generator=torch.Generator().manual_seed(2)) * 0.3
    assert (expected(logits, params) > 0).sum() > 256
    assert_follows(draw(logits, params, count), expected(logits, params))


OUTPUT = [3, 3, 3, 8, 11, 11]
PENALTIES = SamplingParams(
    temperature=0.8,
    repetition_penalty=1.4,
    frequency_penalty=0.6,
    presence_penalty=-0.4,
    logit_bias=((2, 1.5), (11, -0.5)),
    min_tokens=7,
)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "cuts",
    [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 12, "top_p": 0.9, "min_p": 0.05}],
    ids=str,
)
def test_distribution_after_penalties(cuts: dict, count: int) -> None:
    params = replace(PENALTIES, **cuts)
    logits = torch.randn(30, generator=torch.Generator().manual_seed(6)) * 2
    sequences = [
        Sequence(seed, seed, [1, 8, *OUTPUT], 2, params, seed, frozenset({5})) for seed in range(count)
    ]
    after_rules = apply_rules(logits.repeat(1, 1), sequences[:1])
    tokens = sample(after_rules.expand(count, -1), build_sampling_input(sequences))
    ruled = logits.double()
    for token in {1, 8, *OUTPUT}:
        ruled[token] = ruled[token] / 1.4 if ruled[token] > 0 else ruled[token] * 1.4
    for token in set(OUTPUT):
        ruled[token] -= 0.6 * OUTPUT.count(token) - 0.4
    ruled[2] += 1.5
    ruled[11] -= 0.5
    ruled[5] = -math.inf
    assert_follows(tokens, expected(ruled, params))


def test_a_distribution_that_is_a_little_off_is_noticed() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 2
    tokens = draw(logits, SamplingParams(temperature=1.0), 100_000)
    for params in (
        SamplingParams(temperature=1.02),
        SamplingParams(temperature=1.0, top_p=0.995),
        SamplingParams(temperature=1.0, logit_bias=((int(logits.argmax()), 0.05),)),
    ):
        biased = logits.clone()
        for token, bias in params.logit_bias:
            biased[token] += bias
        with pytest.raises(AssertionError):
            assert_follows(tokens, expected(biased, params))


def test_the_test_itself_is_uniform_over_seeds() -> None:
    """Small counts say little one at a time; many of them together do."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(8))
    params = SamplingParams(temperature=1.0)
    tokens = np.array(draw(logits, params, 200_000)).reshape(1000, 200)
    values = [chi_square_p(row.tolist(), expected(logits, params)) for row in tokens]
    counts = np.histogram(values, bins=10, range=(0, 1))[0]
    assert ((counts - 100) ** 2 / 100).sum() < 9 + 4 * math.sqrt(18)


def test_a_row_does_not_depend_on_its_batch_mates() -> None:
    logits = torch.randn(6, 700, generator=torch.Generator().manual_seed(3))
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.999),
        SamplingParams(temperature=0.3, min_p=0.1),
        SamplingParams(temperature=0.0),
    ]
    sequences = [make_sequence(one, seed) for seed, one in enumerate(params)]
    together = sample(logits, build_sampling_input(sequences))
    alone = [
        sample(logits[row : row + 1], build_sampling_input([sequences[row]]))[0] for row in range(len(params))
    ]
    assert together == alone
    assert together[0] == logits[0].argmax()


def test_uniforms_are_uniform_and_unrelated() -> None:
    seeds = np.repeat(np.arange(300, dtype=np.uint64), 300)
    positions = np.tile(np.arange(300, dtype=np.uint64), 300)
    values = uniforms(mixed(seeds), positions)
    assert ((values >= 0) & (values < 1)).all()
    assert len(np.unique(values)) == len(values)
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert ((counts - 900) ** 2 / 900).sum() < 99 + 4 * math.sqrt(2 * 99)
    square = values.reshape(300, 300)
    for neighbours in (square[1:] * square[:-1], square[:, 1:] * square[:, :-1]):
        assert abs(neighbours.mean() - 0.25) < 0.005


def test_whole_numbers_are_options_too() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(5))
    whole, broken = SamplingParams(temperature=1, min_p=0), SamplingParams(temperature=1.0, min_p=0.0)
    for params in (whole, replace(whole, top_p=1), replace(whole, top_k=5)):
        sequences = [make_sequence(params, seed) for seed in range(2)]
        floats = replace(broken, top_k=params.top_k)
        expected = sample(logits, build_sampling_input([make_sequence(floats, seed) for seed in range(2)]))
        assert sample(logits, build_sampling_input(sequences)) == expected


def test_options_of_the_step_before_serve_the_same_rows_only() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(6))
    params = [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(temperature=2.0, top_k=7)]
    sequences = tuple(make_sequence(one, seed) for seed, one in enumerate(params))
    inputs, drawn = SamplingInputs(), set()
    for turn in range(20):
        for sequence in sequences:
            sequence.token_ids.append(turn)
        first, second, third = sequences
        for rows, ahead in (
            (sequences, ()),
            ((first, second), ()),
            ((first, second, third), ((), (), (5,))),
            ((third, second, first), ()),
            ((second,), ()),
        ):
            options = inputs.build(rows, ahead)
            tokens = sample(logits[: len(rows)], options)
            assert tokens == sample(logits[: len(rows)], build_sampling_input(rows, ahead))
            drawn.add(tuple(tokens))
    assert len(drawn) > 50


def test_all_greedy_needs_no_options() -> None:
    sequences = [make_sequence(SamplingParams(temperature=0.0), seed) for seed in range(3)]
    assert build_sampling_input(sequences) is None
    assert sample(torch.eye(3), None) == [0, 1, 2]


def test_tokens_of_one_sequence_are_independent() -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(4))
    params = SamplingParams(temperature=1.0)
    sequences = [make_sequence(params, 7, length) for length in range(1, 5001)]
    tokens = sample(logits.expand(len(sequences), -1), build_sampling_input(sequences))
    assert_follows(tokens, expected(logits, params))
    # The next token follows the same distribution whatever the one before it was.
    likeliest = int(logits.argmax())
    after = [second for first, second in itertools.pairwise(tokens) if first == likeliest]
    assert_follows(after, expected(logits, params))
