"""The offline audit finds what is not as it was pinned or installed."""

import base64
import hashlib
import runpy
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from worker.up import ROOT

AUDIT = runpy.run_path(str(ROOT / ".ci" / "audit.py"))


def install(site: Path, name: str = "Some.Thing") -> Distribution:
    """Lay out a distribution as an installer does."""
    info = site / "some_thing-1.2.dist-info"
    info.mkdir()
    (site / "thing.py").write_bytes(b"x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "RECORD").write_text(f"thing.py,sha256={digest},6\nsome_thing-1.2.dist-info/RECORD,,\n")
    return PathDistribution(info)


def findings(distribution: Distribution, pin: str) -> list[str]:
    pins = AUDIT["read_pins"](iter(["# pins", pin]))
    wrong, num_distributions, num_files = AUDIT["audit"](iter([distribution]), pins)
    assert (num_distributions, num_files) == (1, 1)
    return list(wrong)


def test_what_is_as_pinned_and_as_installed_is_fine(tmp_path: Path) -> None:
    assert findings(install(tmp_path), "some-thing==1.2") == []


@pytest.mark.parametrize("pin", ["some-thing==1.3", "other==1.2"])
def test_another_version_or_none_is_found(tmp_path: Path, pin: str) -> None:
    (found,) = findings(install(tmp_path), pin)
    assert "some-thing: 1.2 is installed" in found


@pytest.mark.parametrize("content", [b"x = 2\n", None])
def test_a_file_that_was_changed_or_is_gone_is_found(tmp_path: Path, content: bytes | None) -> None:
    distribution = install(tmp_path)
    file = tmp_path / "thing.py"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert findings(distribution, "some-thing==1.2") == ["some-thing: thing.py is not as it was installed"]
