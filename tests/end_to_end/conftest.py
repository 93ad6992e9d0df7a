from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.deployment import Deployment, deployment
from tests.fixtures.tiny_llama import write_tiny_llama

# A device second costs 1, and so does an output token.
PRICES = {
    "HEADRACE_PRICE_PER_DEVICE_HOUR": "3600",
    "HEADRACE_PRICE_PER_MILLION_OUTPUT_TOKENS": "1000000",
}
# A semantic hit that is checked is not used.
NO_CHECKS = {"HEADRACE_CACHE_CHECKS": "0"}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"), max_position_embeddings=256)
    tools = "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}"
    thoughts = "{% if thinks %}<think>{% endif %}"
    (directory / "chat_template.jinja").write_text(tools + TEMPLATE + thoughts)
    return directory


# Not for the session: the next folder's deployment uses the same Redis.
@pytest.fixture(scope="package")
def running(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("logs"), tiny_model, **PRICES, **NO_CHECKS) as started:
        yield started
