"""Distributions by counts: fixed seeds, and a bound that a right sampler passes for all but unlucky seeds."""

import itertools
import math

import numpy as np
import pytest
import torch

from worker.engine.sampler import build_sampling_input, sample, uniforms
from worker.engine.sampling import SamplingParams
from worker.engine.sequence import Sequence

NUM_DRAWS = 20_000


def make_sequence(params: SamplingParams, seed: int, length: int = 1) -> Sequence:
    return Sequence(seed, seed, [0] * length, 1, params, seed, frozenset())


def draw(logits: torch.Tensor, params: SamplingParams, count: int = NUM_DRAWS) -> list[int]:
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


def assert_follows(tokens: list[int], distribution: np.ndarray) -> None:
    counts = np.bincount(tokens, minlength=len(distribution))
    assert counts[distribution == 0].sum() == 0, "a token that was cut was drawn"
    likely = distribution * len(tokens) >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(distribution[likely], distribution[~likely].sum()) * len(tokens)
    wanted, observed = wanted[wanted > 0], observed[wanted > 0]
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = max(1, len(wanted) - 1)
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 8


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
def test_distribution(params: SamplingParams) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)) * 2
    assert_follows(draw(logits, params), expected(logits, params))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=400),
        SamplingParams(temperature=1.0, top_k=400, top_p=0.95),
    ],
    ids=str,
)
def test_distribution_past_the_first_candidates(params: SamplingParams) -> None:
    logits = torch.randn(700, generator=torch.Generator().manual_seed(2)) * 0.3
    assert (expected(logits, params) > 0).sum() > 256
    assert_follows(draw(logits, params), expected(logits, params))


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
    values = uniforms(seeds, positions)
    assert ((values >= 0) & (values < 1)).all()
    assert len(np.unique(values)) == len(values)
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert ((counts - 900) ** 2 / 900).sum() < 99 + 4 * math.sqrt(2 * 99)
    square = values.reshape(300, 300)
    for neighbours in (square[1:] * square[:-1], square[:, 1:] * square[:, :-1]):
        assert abs(neighbours.mean() - 0.25) < 0.005


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
