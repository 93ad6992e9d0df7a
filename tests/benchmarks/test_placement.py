import json

import pytest

from benchmarks.placement import main
from tests.fixtures.benchmark_docs import documented_fields


def test_alike_requests_come_from_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--requests 200 --workers 2 --shard-size 8 --shards-in-flight 1 --kv-tokens 16384"
    assert main(small.split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found.pop("requests") == 200
    assert set(found) == {"faq", "turns", "table"}
    keys = {key for figures in found.values() for key in figures} | {"requests"}
    assert keys == documented_fields("placement")
    for figures in found.values():
        assert figures["cached_after"] >= figures["cached_before"]
        assert figures["makespan_ratio"] > 0
    assert found["table"]["cached_after"] > found["table"]["cached_placed"] + 0.1
