"""What README says exists, exists."""

import re
from pathlib import Path

import pytest

from worker.settings import Settings, read_settings
from worker.up import read_procfile
from worker.values.parsing import Family

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_target_in_readme_exists() -> None:
    """A command that is not there is the first thing a newcomer types."""
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= MAKE_TARGETS


def test_every_path_in_readme_exists() -> None:
    """A link to nowhere sends the reader away."""
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    code = re.findall(
        r"`((?:api|worker|kernels|docs|docker|benchmarks|models|tests|migrations)/[\w./-]*)`", README
    )
    assert links
    assert [path for path in links + code if not (ROOT / path).exists()] == []


def test_every_setting_is_in_the_table_with_its_default() -> None:
    """A setting that is not written down does not exist; one that is gone misleads."""
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE))
    real = {
        str(field.validation_alias or f"HEADRACE_{name}").upper()
        for name, field in Settings.model_fields.items()
    }
    assert documented == real


@pytest.mark.parametrize("family", Family)
def test_every_family_can_be_chosen(family: Family) -> None:
    """README's table names them; a process refuses to start with one that its settings do not know."""
    given = {"model_family": family.value, "database_url": "postgresql://", "redis_url": "redis://"}
    assert read_settings(**given).model_family == family.value
    assert f"`{family.value}`" in README


def test_the_procfile_has_the_processes_that_readme_names() -> None:
    """README, Procfile and docker/ name the same processes."""
    assert list(read_procfile(ROOT / "Procfile")) == [
        "release",
        "web",
        "gpu",
        "callbacks",
        "dispatcher",
        "files",
        "flower",
    ]
