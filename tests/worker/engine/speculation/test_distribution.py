"""Sampled tokens follow the model's distribution whatever is guessed; a wrong rule is caught."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.fixtures.scheduling import make_sequence
from tests.fixtures.statistics import LEAST_LIKELY, chi_square_p
from worker.engine.choosing.sampler import build_sampling_input
from worker.engine.choosing.verification import right_rows
from worker.engine.running import model_runner
from worker.engine.running.input_builder import PackedStep
from worker.engine.scheduling.plan import ScheduledSequence
from worker.values.sampling import SamplingParams

VOCAB, LENGTH, COUNT = 5, 3, 12_000
# Logits of the next token by the last one.
CHAIN = torch.from_numpy(np.random.default_rng(3).normal(size=(VOCAB, VOCAB)))
# What is guessed, with what each guess follows.
CHAINS = (((1, 1), ()), ((2, 4), ()), ((0, 3), ()), ((4, 0), ()))
TREES = (
    ((1, 2, 1, 0, 4), (-1, -1, 0, 0, 1)),
    ((0, 1, 2, 3, 4), (-1, -1, -1, -1, -1)),
    ((3, 3, 4, 2, 1), (-1, 0, -1, 2, 2)),
    ((4, 0, 2, 2), (-1, -1, 1, 0)),
)
Guesses = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
Rule = Callable[[Sequence[tuple[int, ...]], Sequence[int | None]], list[list[int]]]


def outputs(temperature: float, guessed: Guesses = CHAINS) -> Counter[tuple[int, ...]]:
    """The first tokens after token 0 of many seeds, with other guesses for each."""
    sequences = [make_sequence(seed, [0]) for seed in range(COUNT)]
    for one in sequences:
        one.params = SamplingParams(temperature=temperature)
        one.seed = one.arrival
    running = list(sequences)
    while running:
        rows, ahead = [], []
        for one in running:
            guesses, parents = guessed[one.arrival % len(guessed)]
            entry = ScheduledSequence(one, 0, 1, is_sampled=True, guesses=guesses, parents=parents)
            for path in entry.paths:
                rows.append(one)
                ahead.append(path)
        last = [(*one.token_ids, *guesses)[-1] for one, guesses in zip(rows, ahead, strict=True)]
        step = PackedStep(
            *(np.zeros(1, dtype=np.int64),) * 4,
            [1],
            *(np.zeros(1, dtype=np.int64),) * 2,
            (),
            None,
            tuple(rows),
            build_sampling_input(rows, ahead),
            ahead=tuple(ahead),
        )
        tokens = model_runner._choose_on_host(CHAIN[last].clone(), rows, ahead, step.sampling)
        chosen = model_runner.kept(step, tokens)
        for one, kept in zip(chosen.sequences, chosen.host, strict=True):
            one.token_ids += [token.token_id or 0 for token in kept]
        running = [one for one in running if one.num_output_tokens < LENGTH]
    return Counter(tuple(one.token_ids[1 : LENGTH + 1]) for one in sequences)


def likelihood(found: Counter[tuple[int, ...]], temperature: float) -> float:
    """The chance of outputs at least as far off the chain's distribution."""
    shares = (CHAIN / temperature).softmax(dim=-1).numpy()
    every = list(np.ndindex(*(VOCAB,) * LENGTH))
    expected = [math.prod(shares[a, b] for a, b in zip((0, *one), one, strict=False)) for one in every]
    drawn = [index for index, one in enumerate(every) for _ in range(found[one])]
    return chi_square_p(drawn, np.array(expected))


@pytest.mark.parametrize("guessed", [CHAINS, TREES], ids=["chains", "trees"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_guesses_do_not_change_the_distribution(temperature: float, guessed: Guesses) -> None:
    assert likelihood(outputs(temperature, guessed), temperature) > LEAST_LIKELY


def keep_all(ahead: Sequence[tuple[int, ...]], _: Sequence[int | None]) -> list[list[int]]:
    """Take every guess for right."""
    return right_rows(ahead, [guesses[0] if guesses else None for guesses in (*ahead[1:], ())])


def keep_neighbours(ahead: Sequence[tuple[int, ...]], chosen: Sequence[int | None]) -> list[list[int]]:
    """Take a guess for right whose number is one off, too."""
    near = [
        guesses[-1] if guesses and abs(guesses[-1] - (token or 0)) == 1 else token
        for guesses, token in zip((*ahead[1:], ()), chosen, strict=True)
    ]
    return right_rows(ahead, near)


def keep_first_siblings(ahead: Sequence[tuple[int, ...]], chosen: Sequence[int | None]) -> list[list[int]]:
    """Of several guesses for the first place, keep the first one if any of them was drawn."""
    drawn = list(chosen)
    first, sibling = 0, None
    for row, guesses in enumerate(ahead):
        if not guesses:
            first, sibling = row, None
        elif len(guesses) == 1:
            sibling = guesses[0] if sibling is None else sibling
            if chosen[first] == guesses[0]:
                drawn[first] = sibling
    return right_rows(ahead, drawn)


@pytest.mark.parametrize(
    ("rule", "guessed"), [(keep_all, CHAINS), (keep_neighbours, CHAINS), (keep_first_siblings, TREES)]
)
def test_a_wrong_rule_is_caught(rule: Rule, guessed: Guesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "right_rows", rule)
    assert likelihood(outputs(1.0, guessed), 1.0) < LEAST_LIKELY**2


@pytest.mark.parametrize("guessed", [CHAINS, TREES], ids=["chains", "trees"])
def test_a_seed_gives_its_tokens_with_and_without_guesses(guessed: Guesses) -> None:
    assert outputs(1.0, guessed) == outputs(1.0, (((), ()),))
