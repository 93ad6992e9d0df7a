import pytest
import torch

from kernels.int8_argmax import cpu, int8_argmax, op
from kernels.int8_argmax.cases import CASES
from kernels.int8_chain import Chain, Link, PanelWeight, is_available, pack_panels, run_chain
from kernels.quantization import quantize_int8

pytestmark = pytest.mark.skipif(not is_available(), reason="needs AVX512 VNNI, and no AMX")


def packed(in_features: int, out_features: int, generator: torch.Generator) -> PanelWeight:
    weight = torch.randn(out_features, in_features, generator=generator)
    return pack_panels(quantize_int8(weight), torch.randn(out_features, generator=generator))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_that_of_the_product(
    case: tuple[int, int, int], threads: int, generator: torch.Generator
) -> None:
    num_rows, in_features, out_features = case
    weight, before = packed(in_features, out_features, generator), torch.get_num_threads()
    x = torch.randn(num_rows, in_features, generator=generator)
    x[0] *= 1000
    torch.set_num_threads(threads)
    try:
        chosen = int8_argmax(x, weight)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(chosen, run_chain(Chain([Link(weight)]), x).argmax(dim=1))


def test_a_part_that_takes_all_panels_has_the_largest_ones(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the other threads begin late."""

    def run_the_last(num_parts: int, numbers: tuple[int, ...]) -> None:
        cpu._take_panels(num_parts - 1, num_parts, cpu.ArgmaxCall(*numbers))

    weight, x = packed(64, 200, generator), torch.randn(5, 64, generator=generator)
    monkeypatch.setattr(op, "num_threads", lambda *_: 3)
    monkeypatch.setattr(op, "find_largest", run_the_last)
    assert torch.equal(int8_argmax(x, weight), run_chain(Chain([Link(weight)]), x).argmax(dim=1))


def test_a_difference_of_the_last_bit_counts(generator: torch.Generator) -> None:
    """Two channels whose bias differs by the smallest step there is: rounded otherwise, another one wins."""
    in_features, out_features = 256, 640
    levels = torch.randn(1, in_features, generator=generator).expand(out_features, -1)
    x = torch.randn(200, in_features, generator=generator)
    bias = torch.rand(out_features, generator=generator) * 1e-5
    weight = pack_panels(quantize_int8(levels), bias)
    products = run_chain(Chain([Link(weight)]), x)
    assert products.unique(dim=1).shape[1] > 10
    assert torch.equal(int8_argmax(x, weight), products.argmax(dim=1))


def test_the_first_of_equal_ones(generator: torch.Generator) -> None:
    levels = torch.randn(1, 64, generator=generator).expand(300, -1)
    weight, x = pack_panels(quantize_int8(levels)), torch.randn(50, 64, generator=generator)
    assert not int8_argmax(x, weight).any()


def test_what_is_not_finite_has_no_token(generator: torch.Generator) -> None:
    x, weight = torch.randn(9, 64, generator=generator), packed(64, 200, generator)
    x[2, 5], x[4, 0] = torch.nan, torch.inf
    chosen = int8_argmax(x, weight)
    assert ((chosen == -1) == torch.tensor([row in {2, 4} for row in range(9)])).all()


def test_arguments_are_checked(generator: torch.Generator) -> None:
    weight = packed(64, 200, generator)
    for x in (torch.ones(2, 60), torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(64, 2).T):
        with pytest.raises(ValueError, match="int8_argmax"):
            int8_argmax(x, weight)
    with pytest.raises(ValueError, match="takes 7"):
        int8_argmax(torch.ones(2, 7), packed(7, 20, generator))
    assert int8_argmax(torch.ones(0, 64), weight).shape == (0,)
