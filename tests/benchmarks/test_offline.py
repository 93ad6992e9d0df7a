import json
from pathlib import Path

import pytest

from benchmarks.offline import main
from benchmarks.workloads import WorkItem, shifted
from tests.fixtures.benchmark_docs import documented_fields
from tests.fixtures.tiny_llama import reference_tokens, write_tiny_llama

PROMPTS = [(5, 6, 7), (9,) * 20, (3, 4, 5)]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("offline")
    write_tiny_llama(directory)
    rows = [
        {"id": i, "prompt_ids": prompt, "text": "", "max_tokens": 4 + i} for i, prompt in enumerate(PROMPTS)
    ]
    (directory / "work.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def arguments(directory: Path, dtype: str) -> list[str]:
    paths = ["--model", directory, "--workload", directory / "work.jsonl", "--out", directory / "out.json"]
    return [*map(str, paths), "--dtype", dtype, "--threads", "1", "--runs", "2"]


def test_the_result_is_complete_and_right(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(workload, "f32")) == 0
    result = json.loads((workload / "out.json").read_text())
    assert len(result["runs"]) == 2
    assert result.keys() == documented_fields("offline")
    assert all(result[key] > 0 for key in ("load_s", "median_s", "out_tok_s", "total_tok_s", "peak_rss_mb"))
    assert [tuple(output) for output in result["outputs"]] == [
        reference_tokens(workload, prompt, 4 + i) for i, prompt in enumerate(PROMPTS)
    ]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["median_s"] == result["median_s"]


@pytest.mark.slow
def test_int8_gives_the_lengths_asked_for(workload: Path) -> None:
    assert main(arguments(workload, "int8")) == 0
    outputs = json.loads((workload / "out.json").read_text())["outputs"]
    assert [len(output) for output in outputs] == [4 + i for i in range(len(PROMPTS))]


def test_runs_differ_in_tokens_and_not_in_lengths() -> None:
    items = [WorkItem((0, 1, 2, 3, 50, 99), 7)]
    assert shifted(items, 100, 0) == items
    (other,) = shifted(items, 100, 1)
    assert other.prompt_ids[:3] == (0, 1, 2)
    assert all(3 <= token < 100 for token in other.prompt_ids[3:])
    assert len(set(other.prompt_ids)) == 6
    assert other != items[0]
