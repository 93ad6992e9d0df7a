import json
from pathlib import Path

import pytest

from benchmarks.admission import BACKLOGS, Shape, main, make_backlog, run_once
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.generation import make_engine
from tests.fixtures.tiny_llama import write_tiny_llama

SHAPE = Shape(num_short=6, num_long=1, long_tokens=64)


@pytest.mark.slow
def test_every_backlog_runs_under_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(tmp_path, max_position_embeddings=512)
    small = "--threads 1 --runs 1 --num-blocks 40 --num-short 6 --num-long 1 --long-tokens 64"
    assert main(["--model", str(tmp_path), "--dtype", "f32", *small.split()]) == 0
    *table, line = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result.keys() == documented_fields("admission")
    assert set(result["medians"]) == set(result["speedup"]) == set(BACKLOGS)
    assert len(table) == 1 + 2 * len(BACKLOGS)
    for name, policies in result["medians"].items():
        assert set(policies) == {"fifo", "length-aware"}
        ratio = policies["fifo"]["seconds"] / policies["length-aware"]["seconds"]
        assert result["speedup"][name] == pytest.approx(ratio, abs=0.05)


@pytest.mark.parametrize("name", BACKLOGS)
def test_outputs_become_as_long_as_planned(tmp_path: Path, name: str) -> None:
    write_tiny_llama(tmp_path, max_position_embeddings=512)
    engine = make_engine(tmp_path, block_size=16)
    requests = make_backlog(name, SHAPE, 320, 1)
    run_once(engine, requests)
    job_of_length = {"long": (48, 64), "short": (8, 48), "all": (8, 64)}
    lengths: dict[int, int] = {}
    for request in make_backlog(name, SHAPE, 320, 2):
        engine.add(request)
    while engine.has_unfinished:
        for completion in engine.step().completions:
            lengths[int(str(completion.id))] = len(completion.token_ids)
            job = str(requests[int(str(completion.id))].job).split()[0]
            low, high = job_of_length[job]
            assert low <= lengths[int(str(completion.id))] <= high
    assert len(lengths) == 7
    longest = max(lengths, key=lengths.__getitem__)
    assert lengths[longest] >= 48
    assert longest == {"late": 6, "first": 0}.get(name, longest)


def test_two_runs_differ_in_tokens_only() -> None:
    one, other = make_backlog("prefixes", SHAPE, 320, 1), make_backlog("prefixes", SHAPE, 320, 2)
    for first, second in zip(one, other, strict=True):
        assert (len(first.prompt), first.params) == (len(second.prompt), second.params)
        assert first.prompt != second.prompt
