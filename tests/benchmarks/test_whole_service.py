import json
from pathlib import Path

import pytest

from benchmarks import claims, ingestion, whole_service
from benchmarks.whole_service import Measurement, main, measurements
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.deployment import free_port
from worker.settings import Settings
from worker.store.database.session import Store


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements that take no time, each field of which is 7; cancelling fails."""
    names: list[str] = []

    def run(measurement: Measurement, _: Path) -> dict[str, int] | None:
        names.append(" ".join(measurement.arguments))
        return None if names[-1] == "cancelling" else dict.fromkeys(measurement.fields, 7)

    monkeypatch.setattr(whole_service, "run", run)
    return names


def test_what_fails_is_null_and_the_others_still_run(
    ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--large", "1000", "--turns", "2"]) == 1
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed.keys() == documented_fields("whole_service")
    assert {name for name, value in printed.items() if value is None} == {
        *("cancel_ms", "cancel_worst_ms", "step_ms")
    }
    assert ran[2] == "ingestion --requests=1000"
    assert ran[-1] == "service --turns=2"


def test_the_large_file_can_be_left_out(ran: list[str]) -> None:
    main(["--large", "0"])
    assert sum("ingestion" in one for one in ran) == 2


@pytest.mark.parametrize("module", ["ingestion", "callbacks", "cancelling", "interactive", "service"])
def test_it_takes_fields_that_there_are(module: str) -> None:
    taken = {name for one in measurements(1, 1) if one.arguments[0] == module for name in one.fields}
    assert taken
    assert taken <= documented_fields(module)


def test_a_process_that_fails_has_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Measurement(("ingestion", "--requests=0"), {})
    assert whole_service.run(wrong, tmp_path) is None
    assert "ingestion failed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_is_accepted_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    monkeypatch.setattr(ingestion, "settings", Settings)  # read again
    monkeypatch.setattr(ingestion, "WARM_UP", 5)
    monkeypatch.setattr(ingestion, "NUM_BODIES", 200)
    for module in (claims, ingestion):
        monkeypatch.setattr(module, "NUM_CLAIMS", 3)
    found = ingestion.measure(store, 200)
    assert found.keys() == documented_fields("ingestion")
    assert found["requests"] == 200
    assert 0 < found["upload_s"] <= found["durable_s"] <= found["accept_s"]
    assert found["polls"] > 0
    assert 0 < found["poll_p50_ms"] <= found["poll_p99_ms"]
    assert 0 < found["claim_p50_ms"] <= found["claim_p99_ms"]
    assert found["rss_mb"] > found["rss_growth_mb"] >= 0
