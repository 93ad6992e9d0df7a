"""Busy neighbours compute while a measurement runs, and are gone after it, also when it fails."""

import psutil
import pytest

from benchmarks.neighbours import FEATURES, busy_neighbours, features, machine
from tests.fixtures.deployment import eventually


class MeasurementError(Exception):
    """Raised where a measurement would be."""


def measure_and_fail(neighbours: list[psutil.Process]) -> None:
    """Keep two neighbours until both have computed, then fail."""
    own = psutil.Process()
    before = set(own.children())
    with busy_neighbours(2):
        neighbours += set(own.children()) - before
        for neighbour in neighbours:
            eventually(lambda one=neighbour: one.cpu_times().user > 0.2, what="a busy process")
        raise MeasurementError


def test_neighbours_compute_and_end_with_the_block() -> None:
    neighbours: list[psutil.Process] = []
    with pytest.raises(MeasurementError):
        measure_and_fail(neighbours)
    assert len(neighbours) == 2
    assert not any(neighbour.is_running() for neighbour in neighbours)


def test_nobody_runs_beside_a_quiet_measurement() -> None:
    before = psutil.Process().children()
    with busy_neighbours(0):
        assert psutil.Process().children() == before


def test_a_machine_says_what_its_products_may_use() -> None:
    assert set(features()) <= set(FEATURES)
    assert machine(2).split()[1:3] == ["2", "cores"]
    assert machine(2).split()[3:] == features()
