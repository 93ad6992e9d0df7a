from pathlib import Path

import pytest

from tests.contract.conftest import Play
from tests.contract.response_scenes import SCENES
from tests.fixtures.deployment import Deployment


@pytest.mark.parametrize("scene", [scene.__name__ for scene in SCENES])
def test_unmodified_clients_get_responses(play: Play, running: Deployment, scene: str) -> None:
    play(scene, Path(running.environment["HEADRACE_MODEL"]).name)
