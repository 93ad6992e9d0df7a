import json

import pytest

from benchmarks import tail
from tests.fixtures.benchmark_docs import documented_fields


def test_the_end_of_a_batch_is_shorter_on_unlike_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail, "FLEETS", {2: (1, 10)})
    monkeypatch.setattr(tail, "SLOWED_AT", 0.5)
    monkeypatch.setattr(tail, "LONGEST", 512)
    small = "--requests 64 --shard-size 8 --shards-in-flight 2 --kv-tokens 65536"
    assert tail.main(small.split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.pop("requests") == 64
    sides = found["workers_2"]
    keys = {key for figures in sides.values() for key in figures} | {*sides, "requests"}
    assert keys | {"workers_2", "workers_4", "workers_8"} == documented_fields("tail")
    assert sides["unlike"]["leaves"] < sides["unlike"]["takes"]
    assert sides["slowed"]["backs_up"] < sides["slowed"]["leaves"]
