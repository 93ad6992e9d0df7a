"""A little of what `make fuzz` does at length, and that it would notice."""

import pytest

from tests.fuzz import runner, surfaces
from tests.fuzz.chaos import Chaos
from tests.fuzz.runner import Finding, Part

INPUTS = 60


@pytest.mark.parametrize("name", surfaces.BY_NAME)
def test_strangers_inputs_end_as_declared(name: str) -> None:
    for number in range(INPUTS):
        surfaces.run(name, f"test/{number}")


def test_inputs_are_not_all_refused() -> None:
    accepted = {
        name: sum(surfaces.run(name, f"test/{i}") for i in range(40)) for name in ("openai", "submission")
    }
    assert all(0 < count < 40 for count in accepted.values()), accepted


def test_the_same_seed_makes_the_same_input() -> None:
    first, second = (Chaos("a").spelled(Chaos("b").spoiled({"a": [1, "x"]})) for _ in range(2))
    assert first == second


class Reports:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


def test_what_raises_is_found_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_at_three(_: str, seed: str) -> bool:
        if seed == "s/3":
            raise KeyError("three")
        return True

    monkeypatch.setattr(surfaces, "run", fails_at_three)
    reports = Reports()
    runner.work([Part("ranges", "s", 0, 5)], reports, [0.0, 0.0])  # type: ignore[arg-type]
    finding, done = reports.sent
    assert isinstance(finding, Finding)
    assert (finding.surface, finding.seed, finding.message) == ("ranges", "s/3", "KeyError('three')")
    assert isinstance(done, dict)
    assert (done["inputs"], done["accepted"]) == (5, 4)


def test_a_process_that_dies_is_found_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        exitcode = -11
        pid = 0

        def is_alive(self) -> bool:
            return False

        def kill(self) -> None: ...

        def join(self) -> None: ...

    started: list[list[Part]] = []
    monkeypatch.setattr(runner, "_start", started.append)
    report = runner.Report()
    silent = runner.multiprocessing.Pipe(duplex=False)[0]
    runner._look(
        runner.Job(Dead(), silent, [7.0, 0.0], [Part("lines", "s", 0, 10), Part("hosts", "s", 0, 2)]), report
    )
    (finding,) = report.findings
    assert (finding.seed, finding.kind) == ("s/7", "lines: the process died, status -11")
    assert started == [[Part("lines", "s", 8, 2), Part("hosts", "s", 0, 2)]]
