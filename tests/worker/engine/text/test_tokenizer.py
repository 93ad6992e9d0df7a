import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.tiny_llama import TEXT, tiny_tokenizer
from worker.engine.requests.errors import CheckpointError
from worker.engine.text.stopping import StopChecker
from worker.engine.text.tokenizer import TextStream, Tokenizer
from worker.values.sampling import SamplingParams


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


@settings(max_examples=200)
@given(text=st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(TEXT))))
def test_pieces_are_whole_characters_and_make_the_text(tokenizer: Tokenizer, text: str) -> None:
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokenizer.encode_batch([text])[0]]
    if "\ufffd" not in text:
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_several_tokens_comes_in_one_piece(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode_batch(["\U0001f9ea"])[0]
    assert len(token_ids) > 1
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in token_ids] == [""] * (len(token_ids) - 1) + ["\U0001f9ea"]


def test_a_tail_that_never_becomes_a_character_is_handed_out(tokenizer: Tokenizer) -> None:
    stray = tokenizer.encode_batch(["\U0001f9ea"])[0][0]
    stream = TextStream(tokenizer)
    assert "".join(stream.push(stray) for _ in range(40)).startswith("\ufffd" * 16)


def checker_of(stop: tuple[str, ...], min_tokens: int, tokenizer: Tokenizer) -> StopChecker:
    return StopChecker(SamplingParams(stop=stop, min_tokens=min_tokens), tokenizer)


@pytest.mark.parametrize(
    "stop", [("lazy",), ("zy d",), ("x",), ("never", " jumps ov"), ("東京",), ("京, 🙂",)]
)
def test_stop_string_is_found_where_it_ends(tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
    token_ids = tokenizer.encode_batch([TEXT])[0]
    checker = checker_of(stop, 0, tokenizer)
    count = next(i for i, token in enumerate(token_ids, 1) if checker.push(token))
    assert any(text in tokenizer.decode(token_ids[:count]) for text in stop)
    assert not any(text in tokenizer.decode(token_ids[: count - 1]) for text in stop)


def test_text_is_cut_before_the_earliest_stop(tokenizer: Tokenizer) -> None:
    assert checker_of(("three", "two"), 0, tokenizer).cut("one two three") == ("one ", "two")
    assert checker_of(("two",), 0, tokenizer).cut("one") == ("one", None)


def test_text_may_be_cut_after_the_stop(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop=("three", "two"), include_stop_str_in_output=True)
    assert StopChecker(params, tokenizer).cut("one two three") == ("one two", "two")


@pytest.mark.parametrize("min_tokens", range(60))
def test_a_stop_string_counts_if_it_ends_with_an_allowed_token(tokenizer: Tokenizer, min_tokens: int) -> None:
    text = "the fox, the dog, the quick jug, the 東京, the"
    token_ids = tokenizer.encode_batch([text])[0]
    assert len(token_ids) < 60
    checker = checker_of(("the", "京, t"), min_tokens, tokenizer)
    count = next((i for i, token in enumerate(token_ids, 1) if checker.push(token)), None)
    before = tokenizer.decode(token_ids[: max(0, min_tokens - 1)]).rstrip("\ufffd")
    begins = [match.start() for match in re.finditer("(?=the)|(?=京, t)", text)]
    ends = {begin: begin + (3 if text[begin] == "t" else 4) for begin in begins}
    left = [begin for begin in begins if ends[begin] > len(before)]
    assert (count is not None) is bool(left)
    if count is not None:
        assert count >= min_tokens
        stop = text[left[0] : ends[left[0]]]
        assert checker.cut(tokenizer.decode(token_ids[:count])) == (text[: left[0]], stop)
        assert checker.cut(text)[0] == text[: left[0]]


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        Tokenizer(tmp_path)
