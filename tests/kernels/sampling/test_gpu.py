import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.sampling import gpu, reference, sample
from kernels.sampling.cases import CASES, SamplingCase
from worker.engine.choosing.sampler import SamplingInput
from worker.engine.choosing.sampler import sample as sample_on_cpu


def grid(num_draws: int) -> Tensor:
    """Uniform numbers at equal distances: each token is drawn as often as it is likely, but for one draw."""
    return (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws


GRID = grid(1000 if torch.cuda.is_available() else 8)  # the interpreter takes 50 ms a draw


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BLOCK", 16)


def logits_of(case: SamplingCase) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(case.vocab_size, generator=generator) * 2
    if case.levels is not None:
        logits = (logits - logits.min()).div(logits.max() - logits.min()).mul(case.levels - 1).round().sub(2)
    return logits


def expected_of(case: SamplingCase, logits: Tensor) -> Tensor:
    return reference.distribution(
        logits, temperature=case.temperature, top_k=case.top_k, top_p=case.top_p, min_p=case.min_p
    )


def draw(case: SamplingCase, logits: Tensor, uniform: Tensor, device: torch.device) -> Tensor:
    options = (case.temperature, case.top_k, case.top_p, case.min_p)
    columns = [torch.full((len(uniform),), float(one), dtype=torch.float64) for one in options]
    rows = logits.expand(len(uniform), -1)
    # A row stride of its own, and something behind each row that must not be drawn.
    rows = torch.cat((rows, torch.full((len(rows), 3), 1e9)), dim=1).to(device)[:, : case.vocab_size]
    return sample(rows, *(x.to(device) for x in (*columns, uniform))).cpu()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_from_the_distribution(case: SamplingCase, device: torch.device) -> None:
    logits = logits_of(case)
    # In the order of the vocabulary; a draw within a rounding of a border may fall on either side.
    bounds = expected_of(case, logits).cumsum(dim=0)
    near = GRID[:, None] - torch.tensor([[1e-6, -1e-6]])
    low, high = torch.searchsorted(bounds, near.clamp(0, bounds[-1] - 1e-6), right=True).T
    tokens = draw(case, logits, GRID, device)
    assert ((tokens == low) | (tokens == high)).all()


@pytest.mark.parametrize("case", [case for case in CASES if not case.levels], ids=str)
def test_the_sampler_of_a_cpu_draws_from_the_same_distribution(case: SamplingCase) -> None:
    num_draws, logits = 5000, logits_of(case)
    every = torch.arange(num_draws)
    is_filtered = case.top_k < case.vocab_size or case.top_p < 1
    options = (case.temperature, case.top_k, case.top_p, case.min_p)
    tokens = sample_on_cpu(
        logits.expand(num_draws, -1),
        SamplingInput(
            *(torch.full((num_draws,), one) for one in options),
            uniform=grid(num_draws),
            greedy_rows=every[: 0 if case.temperature else num_draws],
            plain_rows=every[: 0 if is_filtered or not case.temperature else num_draws],
            filtered_rows=every[: num_draws if is_filtered else 0],
        ),
    )
    shares = np.bincount(tokens, minlength=case.vocab_size) / num_draws
    assert abs(shares - expected_of(case, logits).numpy()).max() <= 2 / num_draws


def test_the_ends_of_the_unit_interval(device: torch.device) -> None:
    case = SamplingCase(20)
    logits = logits_of(case)
    logits[[0, 1, 18, 19]] = -torch.inf
    assert draw(case, logits, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64), device).tolist() == [
        2,
        17,
    ]


def test_rows_have_their_own_options(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 40, generator=generator).to(device)
    columns = torch.tensor(
        [[0, 1, 0.5], [3, 1e9, 2], [0.9, 0.9, 1], [0, 0.2, 0], [0.99, 0.5, 0.3]], dtype=torch.float64
    ).to(device)
    together = sample(logits, *columns)
    of_rows = columns.T.contiguous()
    for row in range(3):
        # A single number is dense, whatever its stride.
        alone = sample(logits[row : row + 1], *of_rows[row : row + 1].T)
        assert torch.equal(alone, together[row : row + 1])
    assert together[0] == logits[0].argmax()


def test_shapes_are_checked(device: torch.device) -> None:
    one = torch.ones(2, dtype=torch.float64, device=device)
    logits = torch.zeros(2, 5, device=device)
    with pytest.raises(ValueError, match="sample"):
        sample(logits, one, one, one, one, one[:1])
    with pytest.raises(ValueError, match="sample"):
        sample(logits, one, one.float(), one, one, one)
    with pytest.raises(ValueError, match="sample"):
        sample(logits.T, one, one, one, one, one)
    assert sample(logits[:0], *(one[:0],) * 5).shape == (0,)
