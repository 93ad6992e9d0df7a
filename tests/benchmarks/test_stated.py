"""The report of the stated figures says plainly what was missed; no measurement runs here."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.service import workload
from benchmarks.stated import __main__ as command
from benchmarks.stated.batching import orders, waste
from benchmarks.stated.figures import STATED, MeasuredFigure, bound, holds
from benchmarks.stated.report import write_table
from benchmarks.stated.response_cache import HIT_RATES, NUM_REQUESTS, partly_answered
from benchmarks.stated.setup import in_turns, ratio
from benchmarks.workloads import WorkItem

BY_KEY = {one.key: one for one in STATED}


def test_every_figure_is_measured_once() -> None:
    measured = [key for keys in command.MEASUREMENTS.values() for key in keys]
    assert sorted(measured) == sorted(BY_KEY)


@pytest.mark.parametrize(
    ("key", "value", "answer", "stated"),
    [
        ("batching", 5.0, True, "at least 5.0 times"),
        ("batching", 4.9, False, "at least 5.0 times"),
        ("quantization_quality", 0.03, True, "at most 3.0%"),
        ("quantization_quality", 0.036, False, "at most 3.0%"),
        ("preemption", 0.5, None, "no figure"),
    ],
)
def test_a_figure_holds_up_to_its_bound(key: str, value: float, answer: bool | None, stated: str) -> None:
    assert (holds(BY_KEY[key], MeasuredFigure(value)), bound(BY_KEY[key])) == (answer, stated)


def test_padding_is_what_the_longest_of_a_batch_adds() -> None:
    items = [WorkItem((1,) * length, 10) for length in (10, 30, 10, 30, 10, 30, 10, 30)]
    assert waste(items) == pytest.approx(1 - (4 * 20 + 4 * 40) / (8 * 40))
    assert waste(orders(items * 2)["sorted"]) == 0


@pytest.mark.parametrize("hit_rate", HIT_RATES)
def test_requests_that_the_cache_answers_are_as_long_as_the_others(hit_rate: float) -> None:
    asked_before = {item.prompt for item in workload(NUM_REQUESTS, 0)}
    items = partly_answered(5, hit_rate)
    known = [item for item in items if item.prompt in asked_before]
    assert len(known) == pytest.approx(hit_rate * NUM_REQUESTS, abs=1)
    tokens = [sum(item.max_tokens for item in some) for some in (known, items)]
    assert tokens[0] / tokens[1] == pytest.approx(hit_rate, abs=0.005)
    assert [item.max_tokens for item in items] == [item.max_tokens for item in workload(NUM_REQUESTS, 0)]


def test_sides_take_turns_and_the_first_round_is_not_counted() -> None:
    ran: list[str] = []
    seconds = {"slow": [9.0, 4.0, 6.0], "fast": [1.0, 2.0, 2.0]}

    def side(name: str, turn: int) -> float:
        ran.append(f"{name} {turn}")
        return seconds[name][turn]

    found = in_turns({name: lambda turn, one=name: side(one, turn) for name in seconds}, 2)
    assert found == {"slow": [4.0, 6.0], "fast": [2.0, 2.0]}
    assert ran == ["fast 0", "slow 0", "slow 1", "fast 1", "fast 2", "slow 2"]
    assert ratio(found, "slow", "fast") == 2.5


def test_the_command_reports_what_it_found_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `tune` is not installed")

    def fails(_: object) -> dict[str, MeasuredFigure]:
        raise RuntimeError("no device")

    found = {"batching": MeasuredFigure(4.0, {"batched_s": 1.5}), "padding_waste": MeasuredFigure(0.5)}
    found["padding_waste"].details.update({"by arrival": 0.5, "sorted": 0.1, "packed": 0.0})
    monkeypatch.setattr(command, "prepare", lambda *_: None)
    measurements = {lambda _: found: ("batching", "padding_waste"), fails: ("fusion",)}
    monkeypatch.setattr(command, "MEASUREMENTS", measurements)
    assert command.main(["--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    last = json.loads(said.out.splitlines()[-1])
    assert last.keys() == found.keys()
    expected = {"stated": "at least 5.0 times", "measured": 4.0, "unit": "times", "holds": False}
    assert expected.items() <= last["batching"].items()
    assert last["batching"]["sentence"].startswith("Batching gives 5 to 10 times")
    assert "fusion: RuntimeError: no device" in said.err
    table = (tmp_path / "results.md").read_text()
    assert "| `batching` |" in table
    assert "| at least 5.0 times | 4.0 times | **no** |" in table
    assert table.count(f"| {time.strftime('%Y-%m-%d', time.gmtime())} |") == 2
    assert "fusion" not in table
    assert table.endswith("![padding](padding.png)\n![speeds](speeds.png)\n")
    assert {file.name for file in tmp_path.iterdir()} == {"results.md", "padding.png", "speeds.png"}


def test_a_figure_that_is_measured_alone_replaces_its_line_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "results.md"
    found = {"batching": MeasuredFigure(4.0), "fusion": MeasuredFigure(0.3)}
    write_table(file, found, "first", "2026-11-23")
    write_table(file, {"batching": MeasuredFigure(6.0)}, "second", "2026-11-24")
    batching, fusion = (line for line in file.read_text().splitlines() if line.startswith("| `"))
    assert "| 6.0 times | yes |" in batching
    assert batching.endswith("| 2026-11-24 |")
    assert "| 30.0% | yes |" in fusion
    assert fusion.endswith("| 2026-11-23 |")
    assert "first" not in file.read_text()
