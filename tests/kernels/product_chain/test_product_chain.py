import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.compiled import has_feature
from kernels.product_chain import After, Chain, Link, op, pack_panels, reference, run_chain
from kernels.product_chain.cases import LAYERS, PRODUCTS
from kernels.product_chain.reference import Step
from kernels.quantization import quantize_int8
from kernels.testing import assert_matches
from tests.kernels.product_chain.formats import FORMATS, can_multiply, weight_in

of_every_format = pytest.mark.parametrize("format_", FORMATS)
EPS = 1e-5
# LLVM's names of processors, what this one must have to stand in for them, and what they have beside AVX2.
AVX512 = ",+avx512f,+avx512bw,+avx512dq,+avx512vl"
OLDER = (
    ("haswell", "avx2", ""),
    ("skylake-avx512", "avx512vl", AVX512),
    ("icelake-server", "avx512vnni", f"{AVX512},+avx512vnni"),
)
ROOT = Path(__file__).parents[3]


def chain_of(steps: list[Step]) -> Chain:
    links = [Link(pack_panels(one.weight, one.bias), one.after, one.norm, one.post_norm) for one in steps]
    return Chain(links, EPS)


def layer(
    case: tuple[int, int, int, int],
    gate: After,
    format_: torch.dtype,
    generator: torch.Generator,
    *,
    is_full: bool,
) -> list[Step]:
    """Return what follows a layer's attention; `is_full`: with all that a family may have."""
    _, attention, hidden, width = case

    def step(in_features: int, out_features: int, after: After) -> Step:
        weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
        norm, post_norm = torch.rand(2, out_features, generator=generator) + 0.5
        return Step(
            weight_in(format_, weight),
            torch.randn(out_features, generator=generator) if is_full else None,
            after,
            norm if after is After.NORM else None,
            post_norm if is_full and after is After.NORM else None,
        )

    steps = [
        step(attention, hidden, After.NORM),
        step(hidden, 2 * width, gate),
        step(width, hidden, After.NORM),
    ]
    return [*steps, step(hidden, 3 * attention, After.NOTHING)] if is_full else steps


@of_every_format
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_a_product_matches_the_reference(
    case: tuple[int, int, int], has_bias: bool, format_: torch.dtype, generator: torch.Generator
) -> None:
    num_rows, in_features, out_features = case
    x = torch.randn(num_rows, in_features, generator=generator)
    if format_ is torch.int8:
        x[-1] *= 1000  # each row has a scale of its own
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
    bias = torch.randn(out_features, generator=generator) if has_bias else None
    steps, before = [Step(weight_in(format_, weight), bias)], x.clone()
    actual = run_chain(chain_of(steps), x)
    assert torch.equal(x, before)
    assert_matches(actual, reference.run_chain(steps, x, x, EPS)[0])


@of_every_format
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "plain"])
@pytest.mark.parametrize("gate", [After.SILU, After.GELU], ids=["silu", "gelu"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_layer_matches_the_reference(
    case: tuple[int, int, int, int],
    gate: After,
    is_full: bool,
    num_threads: int,
    format_: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "num_threads", lambda _: num_threads)
    steps = layer(case, gate, format_, generator, is_full=is_full)
    x = torch.randn(case[0], case[1], generator=generator)
    residual = torch.randn(case[0], case[2], generator=generator)
    expected, total = reference.run_chain(steps, x, residual, EPS)
    assert_matches(run_chain(chain_of(steps), x, residual), expected)
    assert_matches(residual, total)


@of_every_format
def test_a_row_has_the_same_bits_in_any_batch_however_threads_share_the_work(
    format_: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = (300, 48, 64, 160)
    chain = chain_of(layer(case, After.SILU, format_, generator, is_full=True))
    x, residual = (torch.randn(300, width, generator=generator) for width in case[1:3])

    def run(rows: slice, num_threads: int, split: tuple[bool, int]) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(op, "num_threads", lambda _: num_threads)
        monkeypatch.setattr(op, "_split", lambda *_: split)
        total = residual[rows].clone()
        return run_chain(chain, x[rows].contiguous(), total), total

    together, totals = run(slice(0, 300), 1, (False, 32))
    for rows in (slice(0, 1), slice(7, 9), slice(100, 117), slice(0, 300)):
        for num_threads, split in ((1, (False, 5)), (2, (False, 13)), (2, (True, 256)), (3, (True, 64))):
            out, total = run(rows, num_threads, split)
            assert torch.equal(out, together[rows])
            assert torch.equal(total, totals[rows])


@of_every_format
def test_a_row_with_nan_stays_apart_and_zeros_stay_zeros(
    format_: torch.dtype, generator: torch.Generator
) -> None:
    chain = chain_of([Step(weight_in(format_, torch.randn(70, 33, generator=generator)))])
    x = torch.randn(3, 33, generator=generator)
    x[0, 5], x[1] = torch.nan, 0
    out = run_chain(chain, x)
    assert out[0].isnan().all()
    assert (out[1] == 0).all()
    assert torch.equal(out[2:], run_chain(chain, x[2:]))


@of_every_format
def test_what_lay_there_before_has_no_say(
    format_: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.empty
    steps = [Step(weight_in(format_, torch.randn(70, 33, generator=generator)))]
    chain, x = chain_of(steps), torch.randn(3, 33, generator=generator)
    expected, _ = reference.run_chain(steps, x, x, EPS)
    # As bfloat16, these bytes are NaN.
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: empty(*shape, **kind).fill_(255))
    assert_matches(run_chain(chain, x), expected)


@can_multiply
def test_links_of_all_formats_follow_each_other(generator: torch.Generator) -> None:
    case = (4, 20, 70, 130)
    formats = (torch.int8, torch.bfloat16, torch.float32)
    layers = [layer(case, After.SILU, one, generator, is_full=True) for one in formats]
    x, residual = (torch.randn(4, width, generator=generator) for width in case[1:3])
    for turn in range(3):
        first, second, third = layers[turn:] + layers[:turn]
        steps = [first[0], second[1], third[2], first[3]]
        total = residual.clone()
        expected, sums = reference.run_chain(steps, x, residual, EPS)
        assert_matches(run_chain(chain_of(steps), x, total), expected)
        assert_matches(total, sums)


@can_multiply
@pytest.mark.parametrize("in_features", [33, 64])
def test_bfloat16_is_widened_beside_rows_that_are_not_rounded(
    in_features: int, generator: torch.Generator
) -> None:
    weight = torch.randn(70, in_features, generator=generator).bfloat16()
    x = torch.randn(9, in_features, generator=generator)
    out = run_chain(Chain([Link(pack_panels(weight, rounds=False))]), x)
    assert torch.equal(out, run_chain(chain_of([Step(weight.float())]), x))
    assert not torch.equal(out, run_chain(chain_of([Step(weight)]), x))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature", "more"), OLDER, ids=[name for name, _, _ in OLDER])
def test_all_formats_are_multiplied_by_older_processors(name: str, feature: str, more: str) -> None:
    """As on a CPU with fewer instructions: a process of its own compiles for it."""
    if not has_feature(feature):
        pytest.skip(f"needs {feature}")
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": f"+avx2,+fma,+f16c{more}"}
    chosen = "a_product_matches or the_same_bits or widened or lay_there"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@can_multiply
def test_rows_are_shared_by_pieces_or_by_columns() -> None:
    small = chain_of([Step(quantize_int8(torch.ones(64, 64)))])
    assert op._split(small, 36, 2) == (True, 36)
    assert op._split(small, 300, 2) == (False, 30)
    assert op._split(small, 36, 1) == (False, 18)
    assert run_chain(small, torch.zeros(0, 64)).shape == (0, 64)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="zero points"):
        pack_panels(quantize_int8(torch.ones(5, 4), is_symmetric=False))
    with pytest.raises(ValueError, match=r"torch.float16, not bfloat16 or float32"):
        pack_panels(torch.ones(5, 4, dtype=torch.float16))
    link = Link(pack_panels(quantize_int8(torch.ones(6, 4))))
    with pytest.raises(ValueError, match="NOTHING of 6 before a weight of 4"):
        Chain([link, link])
    with pytest.raises(ValueError, match="SILU must be followed"):
        Chain([Link(link.weight, After.SILU)])
    with pytest.raises(ValueError, match="norms do not fit NORM of 6"):
        Chain([Link(link.weight, After.NORM, torch.ones(4))])
    with pytest.raises(ValueError, match="the chain takes 4 columns"):
        run_chain(Chain([link]), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="residual None"):
        run_chain(Chain([Link(link.weight, After.NORM, torch.ones(6))]), torch.zeros(2, 4))
