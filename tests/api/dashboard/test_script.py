"""The page's script, run on the page: with data, without any, and without a key."""

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from api.dashboard.routes import STATIC
from tests.api.dashboard.test_dashboard import SCRIPT, VOID, Page

NOTHING = "\N{EN DASH}"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node here")


class Tree(HTMLParser):
    """The page as nested lists: name, attributes, children."""

    def __init__(self) -> None:
        super().__init__()
        self.root: list[Any] = ["root", {}, []]
        self._open = [self.root]
        self.feed((STATIC / "dashboard.html").read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node: list[Any] = [tag, {name: value or "" for name, value in attrs}, []]
        self._open[-1][2].append(node)
        if tag not in VOID - {"polyline"}:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self._open[-1][2].append(data)


def run(answers: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
    routes = {path: answers.get(name, {}) for name, path in Page().sources.items()}
    given = {"tree": Tree().root, "script": SCRIPT, "answers": routes, "status": status}
    browser = Path(__file__).parent / "browser.mjs"
    done = subprocess.run(
        [NODE or "", str(browser)],
        input=json.dumps(given),
        env={"LC_ALL": "en_US.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_with_no_data_at_all_the_page_is_there_and_says_so() -> None:
    found = run({})
    assert (found["status"], found["shown"], found["login"]) == ("Up to date", True, False)
    assert set(found["values"].values()) == {NOTHING}
    assert {len(rows) for rows in found["rows"].values()} == {1}
    assert found["rows"]["overview.failures"] == ["Nothing has failed."]


def test_a_row_says_what_its_batch_has() -> None:
    batch = {"batch_id": "batch_1", "tenant": "<b>", "status": "processing", "paused": True, "progress": 0.5}
    batch |= {"requests": 4, "requests_done": 2, "requests_failed": 0, "tokens": 1234}
    batch |= {"tokens_per_second": None, "eta_seconds": 3700.4, "name": "a <b>"}
    found = run({"overview": {"batches": [batch]}, "metrics": {"tokens_per_second": 33.34}})
    (row,) = found["rows"]["overview.batches"]
    assert row == f"batch_1 a <b> <b> processing, paused 50 % 2 4 0 1,234 {NOTHING} 1 h 1 min"
    assert found["values"]["metrics.tokens_per_second"] == "33.3"


@pytest.mark.parametrize(
    ("status", "is_asked_for_a_key", "said"),
    [(401, True, "an API key is needed"), (403, True, "an API key is needed"), (503, False, "no")],
)
def test_what_is_refused_is_told(status: int, is_asked_for_a_key: bool, said: str) -> None:
    found = run({}, status=status)
    assert (found["login"], found["shown"]) == (is_asked_for_a_key, False)
    assert said in found["status"]
