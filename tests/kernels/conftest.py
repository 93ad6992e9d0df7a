import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined: without a GPU, Triton interprets it on CPU tensors.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Work this small is slower on more threads, and far slower when they share cores with others."""
    torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    """Where GPU kernels are tested: on the GPU, or on the CPU by Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"
