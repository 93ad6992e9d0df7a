import itertools

import pytest
import torch
from torch import Tensor

from kernels import device as device_of_ops
from kernels.crossover import Regime
from kernels.expert_linear import expert_linear, gpu, pack_expert_weights, reference
from kernels.expert_linear.cases import CASES, ExpertCase
from kernels.quantization import QuantizedWeight
from kernels.testing import assert_matches
from kernels.weight_only_linear.cases import FORMATS as QUANTIZE

REGIMES = {
    "few": Regime("tile", None, block_m=16, block_n=16, block_k=64),
    "many": Regime("tile", None, block_m=32, block_n=64, block_k=128),
}
FORMATS = ("plain", "int8-zero", "int4-64", "int4-128-zero", "fp8", "nf4-nested")


def check(
    case: ExpertCase,
    format_: str,
    regime: str,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
    *,
    is_gated: bool = False,
) -> None:
    num_tokens, num_experts = sum(case.counts), len(case.counts)
    wide = torch.full((num_tokens, case.in_features + 3), torch.nan, dtype=dtype)
    x = wide[:, : case.in_features].copy_(torch.randn(num_tokens, case.in_features, generator=generator))
    rows = num_experts * case.out_features
    dense = torch.randn(rows, case.in_features, generator=generator) / case.in_features**0.5 / 4
    # Rows and groups differ: what is taken from next door is far off.
    steps = torch.randint(-2, 3, (rows, case.in_features // 32), generator=generator)
    dense *= 2.0 ** steps.repeat_interleave(32, dim=1)
    weight: Tensor | QuantizedWeight = dense.to(dtype) if format_ == "plain" else QUANTIZE[format_](dense)
    ends = list(itertools.accumulate(case.counts))
    expected = reference.expert_linear(x, weight, ends, is_gated=is_gated)
    packed = pack_expert_weights(weight, num_experts, is_gated=is_gated).to(device)
    view = wide.to(device)[:, : case.in_features]
    actual = gpu.run(view, packed, torch.tensor(ends, device=device), REGIMES[regime])
    assert actual.dtype == dtype
    assert_matches(actual.cpu(), expected)


@pytest.fixture
def dtype(device: torch.device) -> torch.dtype:
    """Triton's interpreter computes in bfloat16 as if its bits were integers."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: ExpertCase,
    regime: str,
    is_gated: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
) -> None:
    check(case, "plain", regime, dtype, generator, device, is_gated=is_gated)


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_matches_reference(
    format_: str, is_gated: bool, dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> None:
    check(CASES[1], format_, "few", dtype, generator, device, is_gated=is_gated)


def test_float32_is_multiplied_as_such(generator: torch.Generator, device: torch.device) -> None:
    check(CASES[1], "plain", "few", torch.float32, generator, device)


def test_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = pack_expert_weights(torch.ones(6, 4), 3)
    ends = torch.tensor([1, 1, 2])
    with pytest.raises(ValueError, match="on cpu"):
        expert_linear(torch.zeros(2, 4), weight, ends)
    monkeypatch.setattr(device_of_ops, "uses_triton", lambda _: True)
    with pytest.raises(ValueError, match="takes 4"):
        expert_linear(torch.zeros(2, 3), weight, ends)
    with pytest.raises(ValueError, match="expert_ends is"):
        expert_linear(torch.zeros(2, 4), weight, ends[:2])
    with pytest.raises(ValueError, match=r"x is torch\.float16"):
        expert_linear(torch.zeros(2, 4, dtype=torch.float16), weight, ends)
    with pytest.raises(ValueError, match="7 rows cannot be divided among 3"):
        pack_expert_weights(torch.ones(7, 4), 3)
    with pytest.raises(ValueError, match="3 rows cannot be divided among 3"):
        pack_expert_weights(torch.ones(3, 4), 3, is_gated=True)
    assert expert_linear(torch.zeros(0, 4), weight, torch.zeros(3, dtype=torch.int64)).shape == (0, 2)
