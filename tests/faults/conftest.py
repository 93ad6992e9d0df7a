from collections.abc import Iterator

import pytest

from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.deployment import Deployment, deployment
from tests.fixtures.tiny_llama import write_tiny_llama


# Not for the session: the next folder's deployment uses the same Redis.
@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("faults")
    model = write_tiny_llama(directory / "model", max_position_embeddings=256)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    # A small engine, so that a batch lasts long enough to be hurt in the middle.
    options = {
        "HEADRACE_MAX_NUM_SEQUENCES": "8",
        "HEADRACE_DRAIN_SECONDS": "0.2",
        "HEADRACE_SAVE_SECONDS": "0.2",  # progress is seen early, well before the end
    }
    with deployment(directory, model, **options) as started:
        yield started
