from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.checkpoints import LlamaSize, train_tokenizer, write_checkpoint
from benchmarks.offline import main as offline
from benchmarks.workloads import (
    WORKLOADS,
    WorkItem,
    draw_workloads,
    read_sources,
    read_workload,
    write_workload,
)

Drawn = dict[str, list[WorkItem]]


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return read_sources()[:20]


@pytest.fixture(scope="module")
def tokenizer(sources: list[str]) -> Tokenizer:
    return train_tokenizer(sources, vocab_size=600)


@pytest.fixture(scope="module")
def drawn(tokenizer: Tokenizer, sources: list[str]) -> Drawn:
    return dict(draw_workloads(tokenizer, sources))


def test_the_same_sources_give_the_same_workloads(
    drawn: Drawn, tokenizer: Tokenizer, sources: list[str]
) -> None:
    assert dict(draw_workloads(tokenizer, sources)) == drawn
    assert list(drawn) == list(WORKLOADS)


def test_a_tokenizer_trained_again_is_the_same(tokenizer: Tokenizer, sources: list[str]) -> None:
    assert train_tokenizer(sources, vocab_size=600).to_str() == tokenizer.to_str()


def test_lengths_follow_the_laws(drawn: Drawn) -> None:
    for name in ("ragged_small", "ragged_medium"):
        lengths = sorted(len(item.prompt_ids) for item in drawn[name])
        assert lengths[0] >= 16
        assert lengths[-1] <= 512
        assert lengths[len(lengths) // 2] < 200  # short ones more often
        assert all(16 <= item.max_tokens <= 128 for item in drawn[name])


def test_prefixed_prompts_share_384_tokens_and_no_more(drawn: Drawn) -> None:
    prompts = [item.prompt_ids for item in drawn["prefix"]]
    assert len({prompt[:384] for prompt in prompts}) == 1
    assert len({prompt[:400] for prompt in prompts}) > 1
    assert all(400 <= len(prompt) <= 448 for prompt in prompts)


def test_the_text_of_a_request_encodes_to_its_tokens(drawn: Drawn, tokenizer: Tokenizer) -> None:
    for items in drawn.values():
        assert all(tuple(tokenizer.encode(item.text).ids) == item.prompt_ids for item in items)


def test_a_written_workload_reads_back(drawn: Drawn, tmp_path: Path) -> None:
    write_workload(tmp_path / "prefix.jsonl", drawn["prefix"])
    assert read_workload(tmp_path / "prefix.jsonl") == drawn["prefix"]


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"prompt_ids": [1]}', '{"prompt_ids": 1, "max_tokens": 2}']
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "work.jsonl"
    file.write_text(f'{{"prompt_ids": [1], "max_tokens": 2}}\n{line}\n')
    with pytest.raises(ValueError, match=r"work\.jsonl line 2"):
        read_workload(file)


def test_an_empty_workload_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "work.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="no requests"):
        read_workload(tmp_path / "work.jsonl")


def test_too_little_text_for_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="not vocab_size=5000"):
        train_tokenizer(["a few words"], vocab_size=5000)


def test_a_random_checkpoint_runs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", LlamaSize(32, 1, 2, 1, 64, head_dim=16), tokenizer)
    write_workload(tmp_path / "work.jsonl", [WorkItem((5, 6, 7), 3), WorkItem((8,), 5)])
    paths = [
        "--model",
        tmp_path / "model",
        "--workload",
        tmp_path / "work.jsonl",
        "--out",
        tmp_path / "o.json",
    ]
    assert offline([*map(str, paths), "--dtype", "f32", "--threads", "1", "--runs", "1"]) == 0
    write_checkpoint(tmp_path / "again", LlamaSize(32, 1, 2, 1, 64, head_dim=16), tokenizer)
    first, second = (tmp_path / name / "model.safetensors" for name in ("model", "again"))
    assert first.read_bytes() == second.read_bytes()
