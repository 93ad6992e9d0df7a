"""What every client's tests share. `make test-clients` runs them, each in its client's own environment."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

URL = os.environ.get("HEADRACE_CLIENTS_URL")
# `make test` has no client but its own.
collect_ignore_glob = [] if URL else ["test_*.py"]

MODEL = "demo"
KEY = "none-on-loopback"
# An object that even a model without any sense of JSON ends soon.
ANIMAL = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def url() -> str:
    """The address of the deployment, without `/v1`."""
    assert URL is not None
    return URL.rstrip("/")


@pytest.fixture(scope="session")
def openai_url(url: str) -> str:
    """The address that clients of OpenAI's take."""
    return f"{url}/v1"


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Return the first true value of a condition."""

    def wait(condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if value := condition():
                return value
            time.sleep(0.1)
        raise AssertionError("it did not happen")

    return wait
