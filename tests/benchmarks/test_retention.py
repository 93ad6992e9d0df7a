import json

import pytest

from benchmarks import retention
from tests.fixtures.benchmark_docs import documented_fields


@pytest.mark.slow  # it fills ten days, twice
@pytest.mark.usefixtures("store")
def test_a_day_is_dropped_in_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 256)
    assert retention.main(["--rows", "5120", "--days", "10"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    passes, partition = found["passes"], found["partition"]
    assert passes["num_dropped"] == 512
    assert partition["mb_after"] < partition["mb_before"]
    keys = {*found, *found["work"], *passes, *partition}
    assert keys == documented_fields("retention")
