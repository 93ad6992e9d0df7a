import pytest
import torch

from kernels.panel_argmax import cpu, op, panel_argmax
from kernels.panel_argmax.cases import CASES
from kernels.product_chain import Chain, Link, PanelWeight, pack_panels, run_chain
from tests.kernels.product_chain.formats import FORMATS, can_multiply, weight_in

of_every_format = pytest.mark.parametrize("format_", FORMATS)


def packed(
    in_features: int, out_features: int, generator: torch.Generator, format_: torch.dtype = torch.int8
) -> PanelWeight:
    weight = torch.randn(out_features, in_features, generator=generator)
    # As large as a product, so that it decides with the product's scale.
    bias = torch.randn(out_features, generator=generator) * in_features**0.5
    return pack_panels(weight_in(format_, weight), bias)


@of_every_format
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_it_is_that_of_the_product(
    case: tuple[int, int, int], threads: int, format_: torch.dtype, generator: torch.Generator
) -> None:
    num_rows, in_features, out_features = case
    weight, before = packed(in_features, out_features, generator, format_), torch.get_num_threads()
    x = torch.randn(num_rows, in_features, generator=generator)
    x[0] *= 1000
    torch.set_num_threads(threads)
    try:
        chosen = panel_argmax(x, weight)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(chosen, run_chain(Chain([Link(weight)]), x).argmax(dim=1))


@can_multiply
def test_rows_that_are_not_rounded_meet_bfloat16(generator: torch.Generator) -> None:
    weight = pack_panels(torch.randn(200, 33, generator=generator).bfloat16(), rounds=False)
    x = torch.randn(9, 33, generator=generator)
    assert torch.equal(panel_argmax(x, weight), run_chain(Chain([Link(weight)]), x).argmax(dim=1))


@of_every_format
def test_a_part_that_takes_all_panels_has_the_largest_ones(
    format_: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the other threads begin late."""

    def run_the_last(num_parts: int, numbers: tuple[int, ...]) -> None:
        cpu._take_panels(num_parts - 1, num_parts, cpu.ArgmaxCall(*numbers))

    weight, x = packed(64, 200, generator, format_), torch.randn(5, 64, generator=generator)
    monkeypatch.setattr(op, "num_threads", lambda *_: 3)
    monkeypatch.setattr(op, "find_largest", run_the_last)
    assert torch.equal(panel_argmax(x, weight), run_chain(Chain([Link(weight)]), x).argmax(dim=1))


@of_every_format
def test_a_difference_of_the_last_bit_counts(format_: torch.dtype, generator: torch.Generator) -> None:
    """Two channels whose bias differs by the smallest step there is: rounded otherwise, another one wins."""
    in_features, out_features = 256, 640
    levels = torch.randn(1, in_features, generator=generator).expand(out_features, -1)
    x = torch.randn(200, in_features, generator=generator)
    bias = torch.rand(out_features, generator=generator) * 1e-5
    weight = pack_panels(weight_in(format_, levels), bias)
    products = run_chain(Chain([Link(weight)]), x)
    assert products.unique(dim=1).shape[1] > 10
    assert torch.equal(panel_argmax(x, weight), products.argmax(dim=1))


@of_every_format
def test_the_first_of_equal_ones(format_: torch.dtype, generator: torch.Generator) -> None:
    levels = torch.randn(1, 64, generator=generator).expand(300, -1)
    weight, x = pack_panels(weight_in(format_, levels)), torch.randn(50, 64, generator=generator)
    assert not panel_argmax(x, weight).any()


@of_every_format
def test_what_is_not_finite_has_no_token(format_: torch.dtype, generator: torch.Generator) -> None:
    x, weight = torch.randn(9, 64, generator=generator), packed(64, 200, generator, format_)
    x[2, 5], x[4, 0] = torch.nan, torch.inf
    chosen = panel_argmax(x, weight)
    assert ((chosen == -1) == torch.tensor([row in {2, 4} for row in range(9)])).all()
    wide = packed(64, 2000, generator, format_)
    wide.bias[5] = torch.nan  # in the first of many panels
    assert (panel_argmax(torch.ones(2, 64), wide) == -1).all()


@of_every_format
def test_arguments_are_checked(format_: torch.dtype, generator: torch.Generator) -> None:
    weight = packed(64, 200, generator, format_)
    for x in (torch.ones(2, 60), torch.ones(2, 64, dtype=torch.bfloat16), torch.ones(64, 2).T):
        with pytest.raises(ValueError, match="panel_argmax"):
            panel_argmax(x, weight)
    assert panel_argmax(torch.ones(0, 64), weight).shape == (0,)
