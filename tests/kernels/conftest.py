import os

import pytest
import torch

# Triton reads it once, when its kernels are imported: on a machine without a GPU they run in the interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where Triton kernels run, with the outputs they allocate full of NaN, or of the largest integer."""
    empty = torch.empty

    def filled(*shape: int, **options: object) -> torch.Tensor:
        out = empty(*shape, **options)
        if out.dtype.is_floating_point:
            return (
                out.view(torch.uint8).fill_(127).view(out.dtype)
                if out.itemsize == 1
                else out.fill_(torch.nan)
            )
        return out.fill_(torch.iinfo(out.dtype).max)

    monkeypatch.setattr(torch, "empty", filled)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
