"""Medusa heads guess from the state of the newest token's row, whatever Step that was in."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.scheduling import make_sequence
from tests.fixtures.speculation import FixedTimes, guess_with_heads, write_heads
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.contract.models import identify
from worker.engine.choosing.chosen_tokens import ChosenTokens
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.requests.errors import CheckpointError
from worker.engine.sequences.next_token import NextToken
from worker.values.model_files import HEADS_FILE
from worker.values.sampling import Optimization, SamplingParams

pytestmark = pytest.mark.usefixtures("only_on_cpu")

PROMPTS = [(5, 6, 7), (9, 8, 9), (3, 1, 4), (40, 41, 42)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"), hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def with_heads(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run(make_engine(checkpoint, dtype="int8"), requests_for(PROMPTS, greedy(45)))
    texts = [(*prompt, *one.token_ids) for prompt, one in zip(PROMPTS, done, strict=True)]
    return write_heads(checkpoint, tmp_path_factory.mktemp("heads"), texts)


def test_a_head_is_a_residual_block() -> None:
    torch.manual_seed(1)
    heads = MedusaHeads(torch.randn(3, 8, 16), torch.randn(3, 8))
    hidden, embedded = torch.randn(2, 5, 8)
    found = heads.states(hidden, embedded, 2)
    assert found.shape == (5, 2, 8)
    for head in range(2):
        read = torch.cat((hidden, embedded / embedded.square().mean(-1, keepdim=True).sqrt()), dim=1)
        inner = read @ heads.weights[head].T + heads.biases[head]
        torch.testing.assert_close(found[:, head], hidden + inner * inner.sigmoid())


def test_what_the_heads_know_takes_fewer_steps(checkpoint: Path, with_heads: Path) -> None:
    requests = requests_for(PROMPTS, greedy(40))
    expected = run(make_engine(checkpoint, dtype="int8"), requests)
    engine = make_engine(with_heads, dtype="int8", speculates=True)
    guess_with_heads(engine)
    assert [one.token_ids for one in run(engine, requests)] == [one.token_ids for one in expected]
    stats = engine.stats
    assert stats.medusa_right_tokens > 0.2 * stats.medusa_guessed_tokens > 40, (
        "of a tree, most cannot be right"
    )
    assert stats.steps < 20, "of 40 tokens each"
    shares = engine._runner.medusa.shares  # type: ignore[union-attr]
    assert 1 > shares[0] > shares[3] > 0


def test_what_is_not_verified_is_learned_from_too(with_heads: Path) -> None:
    engine = make_engine(with_heads, dtype="int8", speculates=True)
    guess_with_heads(engine)
    engine._speculation.times = FixedTimes(0.0, 1.0)  # type: ignore[assignment]  # no guess pays
    engine._speculation._is_time = lambda _: True  # type: ignore[method-assign]  # but all are asked for
    engine._speculation._worthwhile = lambda *_: 4  # type: ignore[method-assign]
    run(engine, requests_for([(50, 51, 52)], greedy(20)))
    assert engine._runner.medusa.shares[0] < 0.4, "of an unknown text"  # type: ignore[union-attr]


def test_heads_that_cost_more_than_they_yield_are_not_asked(with_heads: Path) -> None:
    engine = make_engine(with_heads, dtype="int8", speculates=True)
    guess_with_heads(engine)
    engine._speculation.times = FixedTimes(1e-9)  # type: ignore[assignment]
    run(engine, requests_for(PROMPTS[:1], greedy(40)))
    assert engine.stats.medusa_guessed_tokens <= 12, "only until a pass was measured"


def test_without_speculation_nothing_is_kept(with_heads: Path) -> None:
    assert make_engine(with_heads)._runner.medusa is None


def test_states_of_what_has_ended_are_forgotten(with_heads: Path) -> None:
    """Also of requests that may have no guess, about which nobody asks."""
    engine = make_engine(with_heads, speculates=True)
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, optimization=Optimization.BASIC)
    run(engine, requests_for([(5, 6 + number) for number in range(200)], params))
    kept = engine._runner.medusa._steps  # type: ignore[union-attr]
    assert 0 < sum(len(chosen.sequences) for chosen, _ in kept) < 100


def test_the_state_is_that_of_the_latest_step_with_the_sequence(with_heads: Path) -> None:
    heads = make_engine(with_heads, speculates=True)._runner.medusa
    assert heads is not None
    a, b, c, other = (make_sequence(number, (1, 2)) for number in range(4))
    token = (NextToken(5),)
    states = [torch.full((3, 64), float(number)) for number in range(6)]
    heads.chose(ChosenTokens((c,), [token], [[0]]), states[0])
    heads.chose(ChosenTokens((a, b), [token, token], [[0], [1, 2]]), states[1])
    heads.chose(ChosenTokens((b, a), [token, token], [[0, 1], [2]]), states[2])
    for number in (3, 4):
        heads.chose(ChosenTokens((b,), [token], [[number - 3]]), states[number])
        heads.chose(ChosenTokens((), [], []), states[5])  # of a Step that chose nothing
    found = {
        one: (hidden[0, 0].item(), row) for one, (hidden, row) in heads._states([a, b, c, other]).items()
    }
    assert found == {a: (2.0, 2), b: (4.0, 1)}, "c was left out of too many Steps"


def test_heads_are_no_part_of_the_model(checkpoint: Path, with_heads: Path) -> None:
    assert identify(with_heads).fingerprint == identify(checkpoint).fingerprint


@pytest.mark.parametrize("wrong", ["cut", "missing", "shape"])
def test_a_file_that_does_not_fit_is_refused(with_heads: Path, tmp_path: Path, wrong: str) -> None:
    copy = shutil.copytree(with_heads, tmp_path / "copy")
    file = copy / HEADS_FILE
    tensors = load_file(file)
    if wrong == "cut":
        file.write_bytes(file.read_bytes()[:50])
    elif wrong == "missing":
        del tensors["heads.1.bias"]
        save_file(tensors, file)
    else:
        save_file(tensors | {"heads.2.weight": torch.zeros(64, 64)}, file)
    with pytest.raises(CheckpointError, match=HEADS_FILE):
        make_engine(copy, speculates=True)
