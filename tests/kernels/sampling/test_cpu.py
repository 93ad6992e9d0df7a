import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.sampling import draw, keep_allowed
from kernels.sampling.cpu import CHUNK
from kernels.sampling.reference import distribution

LAST = 1 - 2.0**-53  # the largest uniform number
SIZES = (1, 20, CHUNK, CHUNK + 1, 5 * CHUNK - 3)


def drawn(logits: Tensor, uniform: list[float], temperature: float = 1.0, min_p: float = 0.0) -> list[int]:
    count = len(uniform)
    rows = logits.expand(count, -1) if logits.dim() == 1 else logits
    options = (torch.full((count,), value) for value in (temperature, min_p))
    tokens: list[int] = draw(rows, *options, torch.tensor(uniform, dtype=torch.float64)).tolist()
    return tokens


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.0), (0.3, 0.0), (2.5, 0.1)])
def test_a_token_is_where_the_distribution_passes_the_number(
    vocab_size: int, temperature: float, min_p: float
) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(0)) * 2
    logits[1::7] = -torch.inf
    shares = distribution(logits, temperature=temperature, top_k=1 << 31, top_p=1.0, min_p=min_p)
    ends = shares.cumsum(0)
    middles = (ends - shares / 2)[shares > 1e-6]
    expected = (shares > 1e-6).nonzero().squeeze(1)
    assert drawn(logits, middles.tolist(), temperature, min_p) == expected.tolist()


@pytest.mark.parametrize("vocab_size", SIZES)
def test_what_is_forbidden_is_never_drawn(vocab_size: int) -> None:
    """Not even at the ends of the interval, where a sum may be rounded."""
    generator = torch.Generator().manual_seed(vocab_size)
    for _ in range(20):
        logits = torch.randn(vocab_size, generator=generator) * 5 + 100
        logits[torch.rand(vocab_size, generator=generator) < 0.9] = -torch.inf
        logits[torch.randint(vocab_size, (1,), generator=generator)] = 100.0
        kept = logits.isfinite().nonzero().squeeze(1)
        assert drawn(logits, [0.0, LAST]) == [kept[0], kept[-1]]


def test_a_row_has_its_own_options_and_does_not_depend_on_others() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(70, 1000, generator=generator)
    temperature, min_p = torch.rand(2, 70, generator=generator) + torch.tensor([[0.1], [0.0]])
    uniform = torch.rand(70, generator=generator, dtype=torch.float64)
    together = draw(logits, temperature, min_p, uniform)
    for row in range(70):
        own = slice(row, row + 1)
        assert torch.equal(draw(logits[own], temperature[own], min_p[own], uniform[own]), together[own])
    wide = torch.full((70, 1003), 50.0)
    wide[:, :1000] = logits
    assert torch.equal(draw(wide[:, :1000], temperature, min_p, uniform), together), "rows with a gap"


def test_a_row_that_is_not_finite_gets_some_token() -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        assert 0 <= drawn(torch.full((300,), value), [0.5])[0] < 300


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 320, 1000])
def test_masks_keep_what_has_a_bit(vocab_size: int) -> None:
    generator = np.random.default_rng(vocab_size)
    bits = (
        generator.random((3, -(-vocab_size // 32) * 32 + 32)) < 0.5
    )  # with a word more than there are tokens
    allowed = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    logits = torch.from_numpy(generator.standard_normal((5, vocab_size)).astype(np.float32))
    expected = logits.clone()
    rows = [3, 0, 4]
    expected[rows] = expected[rows].masked_fill(torch.from_numpy(~bits[:, :vocab_size]), -torch.inf)
    keep_allowed(logits, rows, allowed)
    assert torch.equal(logits, expected)


def test_a_single_number_is_dense_whatever_its_stride() -> None:
    temperature, min_p = torch.tensor([[2.0, 0.5]]).T
    assert temperature.stride() == (2,)
    logits, uniform = torch.linspace(0, 1, 40)[None], torch.tensor([0.3], dtype=torch.float64)
    expected = draw(logits, torch.tensor([2.0]), torch.tensor([0.5]), uniform)
    assert draw(logits, temperature, min_p, uniform) == expected


def test_arguments_are_checked() -> None:
    logits, one = torch.zeros(2, 40), torch.ones(2)
    uniform, allowed = one.double(), np.zeros((2, 2), dtype=np.uint32)
    for given in (
        (logits.double(), one, one, uniform),
        (torch.zeros(40, 2).T, one, one, uniform),
        (logits, one[:1], one, uniform),
        (logits, one, one, one),
    ):
        with pytest.raises(ValueError, match="draw"):
            draw(*given)
    for masked in (
        (logits, [0, 2], allowed),
        (logits, [0], allowed),
        (logits, [0, 1], allowed[:, :1]),
        (logits.double(), [0, 1], allowed),
        (logits, [0, 1], allowed.astype(np.int64)),
    ):
        with pytest.raises(ValueError, match="keep_allowed"):
            keep_allowed(*masked)
    assert draw(logits[:0], one[:0], one[:0], uniform[:0]).shape == (0,)
