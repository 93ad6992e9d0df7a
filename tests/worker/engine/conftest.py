import os
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


@pytest.fixture(scope="session")
def only_on_cpu(pytestconfig: pytest.Config) -> None:
    """Skip what only a CPU does, or does at once.

    On a GPU a Step starts before the tokens of the one before are known, and the Step that a row is in
    rounds it.
    """
    if pytestconfig.getoption("--device") != "cpu":
        pytest.skip("a CPU's own")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for tests that need any one."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))
