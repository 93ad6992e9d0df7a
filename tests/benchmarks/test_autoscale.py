import json
from pathlib import Path

import pytest

from benchmarks import autoscale
from benchmarks.arrivals import Arrival
from benchmarks.simulated_fleet import COLD_START, Fleet, run
from tests.fixtures.benchmark_docs import documented_fields

HOUR = 3600.0
TRACE = [Arrival(at=60, seconds=1200, window=HOUR), Arrival(at=900, seconds=1800, window=2 * HOUR)]


def write(path: Path, *lines: dict[str, float]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_recorded_trace_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = [{"at": one.at, "seconds": one.seconds, "window": one.window} for one in TRACE]
    assert autoscale.main(["--trace", str(write(tmp_path / "trace", *recorded))]) == 0
    found, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert found.keys() == documented_fields("autoscale")
    assert summary.keys() == {"gpu_hours_over_oracle", "misses_beyond_oracle", "gpu_hours_over_last_value"}
    assert (found["misses"], found["oracle_misses"]) == (0, 0)
    assert found["gpu_hours"] >= found["oracle_gpu_hours"] > sum(one.seconds for one in TRACE) / HOUR


def test_runs_are_drawn(tmp_path: Path) -> None:
    recorded = [{"at": one.at, "seconds": one.seconds, "window": one.window} for one in TRACE]
    trace, folder = write(tmp_path / "trace", *recorded), tmp_path / "pictures"
    assert autoscale.main(["--trace", str(trace), "--pictures", str(folder)]) == 0
    for name in ("trace.png", "hours.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_course_of_a_run_begins_with_its_work_and_ends_without() -> None:
    course = run(TRACE, autoscale.predictive(spot=False), seed=0).course
    assert max(left for _, _, left in course) > TRACE[0].seconds * 0.9
    assert course[-1][1:] == (0, 0)
    assert max(count for _, count, _ in course) == 1


@pytest.mark.parametrize(
    "line", [{"at": 0, "seconds": 0, "window": 1}, {"at": 0, "window": 1}, {"at": 0, "what": 1}]
)
def test_a_wrong_trace_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: dict[str, float]
) -> None:
    assert autoscale.main(["--trace", str(write(tmp_path / "trace", line))]) == 2
    assert "line 1" in capsys.readouterr().err


def test_the_bound_counts_all_work_and_the_workers_that_must_run_at_once() -> None:
    at_once = [Arrival(at=0, seconds=HOUR, window=HOUR)] * 3
    assert autoscale.least_hours(at_once) == pytest.approx(3 + 3 * COLD_START[0] / HOUR)


def test_a_fleet_that_never_starts_misses_every_deadline() -> None:
    def nobody(fleet: Fleet) -> None:
        """Start nobody."""

    totals = run(TRACE, nobody, seed=0)
    assert (totals.misses, totals.gpu_seconds) == (2, 0)


def test_spot_workers_that_are_taken_away_are_replaced_in_time() -> None:
    trace = [Arrival(at=0, seconds=12 * HOUR, window=24 * HOUR)] * 4
    totals = run(trace, autoscale.predictive(spot=True), seed=1)
    assert totals.preemptions > 0
    assert totals.misses == 0
    assert totals.gpu_hours < 1.1 * autoscale.least_hours(trace)
