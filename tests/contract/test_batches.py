from pathlib import Path

import pytest

from tests.contract.conftest import Play
from tests.fixtures.deployment import Deployment


@pytest.mark.parametrize(
    "scene", ["batch", "failures", "uploads", "cancel", "retries", "experiment", "tools"]
)
def test_unmodified_clients_work(play: Play, running: Deployment, scene: str) -> None:
    play(scene, Path(running.environment["HEADRACE_MODEL"]).name)
