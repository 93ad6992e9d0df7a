from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

import kernels.device
from kernels.expert_linear import ExpertWeights, gpu, pack_expert_weights
from worker.engine.models.layers.linear import Linear
from worker.engine.models.layers.mixture_of_experts import ExpertRouter, ExpertsOnGpu, MixtureOfExperts
from worker.engine.models.layers.mlp import Gated, GatedMlp

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH = 6, 2, 16, 8


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not torch.cuda.is_available():
        monkeypatch.setattr(kernels.device, "uses_triton", lambda _: True)
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    return


def on_gpu(router: Tensor, gate_up: Tensor, down: Tensor) -> ExpertsOnGpu:
    return ExpertsOnGpu(
        ExpertRouter(Linear(router), num_chosen=NUM_CHOSEN, is_normalised=True),
        pack_expert_weights(gate_up.flatten(0, 1), NUM_EXPERTS, is_gated=True),
        pack_expert_weights(down.flatten(0, 1), NUM_EXPERTS),
    )


def on_cpu(router: Tensor, gate_up: Tensor, down: Tensor) -> MixtureOfExperts:
    experts = [
        GatedMlp(Gated(Linear(one), "silu"), Linear(two)) for one, two in zip(gate_up, down, strict=True)
    ]
    return MixtureOfExperts(ExpertRouter(Linear(router), num_chosen=NUM_CHOSEN, is_normalised=True), experts)


def weights() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(NUM_EXPERTS, HIDDEN),
        torch.randn(NUM_EXPERTS, 2 * WIDTH, HIDDEN),
        torch.randn(NUM_EXPERTS, HIDDEN, WIDTH),
    )


def without_numbers(x: Tensor, weight: ExpertWeights, expert_ends: Tensor) -> Tensor:
    assert expert_ends.shape == (NUM_EXPERTS,)
    return x.new_empty(len(x), weight.rows_per_expert // (1 + weight.stacked.is_gated))


def test_on_a_gpu_the_host_asks_for_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have none: what waits for one raises, and could be in no CUDA graph."""
    monkeypatch.setattr(gpu, "run", without_numbers)
    monkeypatch.setattr(kernels.device, "uses_triton", lambda _: True)
    with FakeTensorMode():
        assert on_gpu(*weights())(torch.randn(5, HIDDEN)).shape == (5, HIDDEN)
        with pytest.raises(DynamicOutputShapeException):
            on_cpu(*weights())(torch.randn(5, HIDDEN))
