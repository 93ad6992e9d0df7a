import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.fixtures import generation
from tests.fixtures.tiny_llama import write_tiny_llama

# As for the tests of kernels: without a GPU, Triton's are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _device(pytestconfig: pytest.Config) -> None:
    """Where `make test-gpu` runs all of these."""
    generation.DEFAULTS["device"] = pytestconfig.getoption("--device")


@pytest.fixture(scope="module")
def on_cpu() -> Iterator[None]:
    """Run engines on the CPU, whatever --device says: for what only a CPU does, or does at once.

    On a GPU a Step starts before the tokens of the one before are known, and the Step that a row is in
    rounds it.
    """
    before = generation.DEFAULTS["device"]
    generation.DEFAULTS["device"] = "cpu"
    yield
    generation.DEFAULTS["device"] = before


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for tests that need any one."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))
