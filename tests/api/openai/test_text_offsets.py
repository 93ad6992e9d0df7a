"""Where each token of an answer begins in its text."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from api.inputs.checkpoint import Checkpoint
from api.openai.logprobs import TextOffsets
from tests.fixtures.tiny_llama import BEGIN, END, TEXT, tiny_tokenizer


def load(directory: Path, tokenizer: Tokenizer) -> Checkpoint:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"max_position_embeddings": 64}')
    return Checkpoint.load(directory)


@pytest.fixture
def byte_level(tmp_path: Path) -> Checkpoint:
    return load(tmp_path, tiny_tokenizer())


@pytest.fixture
def with_spaces(tmp_path: Path) -> Checkpoint:
    """A tokenizer that writes a space before every word, and drops the first when it decodes."""
    words = ["<unk>", "\u2581the", "\u2581fox", "es", "<0xC3>", "<0xA9>"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return load(tmp_path, tokenizer)


def test_each_token_begins_where_the_text_before_it_ends(byte_level: Checkpoint) -> None:
    ids = byte_level.encode(TEXT + " ñ🙃", add_special_tokens=False)
    offsets = TextOffsets(byte_level).push(ids)
    for index, offset in enumerate(offsets):
        before = byte_level.text_of(ids[:index])
        assert offset == len(before.rstrip("\ufffd"))  # a character that is not whole begins there
    assert len(set(offsets)) < len(offsets)


def test_a_stream_continues(byte_level: Checkpoint) -> None:
    ids = byte_level.encode(TEXT, add_special_tokens=False)
    parts = TextOffsets(byte_level, start=7)
    found = [offset for index in range(0, len(ids), 3) for offset in parts.push(ids[index : index + 3])]
    assert found == TextOffsets(byte_level, start=7).push(ids)
    assert found == [7 + offset for offset in TextOffsets(byte_level).push(ids)]


def test_special_tokens_take_room_only_where_the_text_has_them(byte_level: Checkpoint) -> None:
    (fox,) = byte_level.encode("x", add_special_tokens=False)
    ids = [BEGIN, fox, END, fox]
    assert TextOffsets(byte_level, text="xx").push(ids) == [0, 0, 1, 1]
    end = byte_level.token_text(END)
    assert TextOffsets(byte_level, text=f"x{end}x").push(ids) == [0, 0, 1, 1 + len(end)]


def test_the_space_that_is_dropped_takes_no_room(with_spaces: Checkpoint) -> None:
    ids = [1, 2, 3, 4, 5, 2]
    assert with_spaces.text_of(ids) == "the foxes\xe9 fox"
    assert TextOffsets(with_spaces).push(ids) == [0, 3, 7, 9, 9, 10]
