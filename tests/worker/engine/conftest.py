from pathlib import Path

import pytest

from tests.fixtures.tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint for tests that need any one."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))
