"""What is no request in a file costs little, however much of it there is."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from httpx import Response

from api.errors import InvalidLinesError
from api.files.intake import SLICE_BYTES, Intake, IntakeLimits
from api.files.lines import MAX_ERRORS, SPARE_BLANK_LINES, LineSplitter
from tests.fixtures.inputs import lines
from worker.store.requests.requests import NewRequest

MAX_LINES = 300
LIMITS = IntakeLimits(max_file_bytes=500 << 20, max_line_bytes=2000, max_lines=MAX_LINES)


def taken(directory: Path, pieces: Iterator[bytes]) -> tuple[InvalidLinesError, int, int]:
    """Feed a file until it is refused; return why, and how many lines and bytes were looked at."""
    intake = Intake(directory, LIMITS, lambda _: NewRequest("a", max_tokens=1))

    def feed_all() -> None:
        for piece in pieces:
            for _ in intake.feed(piece):
                pass
        intake.finish()

    try:
        with pytest.raises(InvalidLinesError) as refused:
            feed_all()
        return refused.value, intake._splitter.number, intake._spool.num_bytes
    finally:
        intake.close()


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t\n"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_of_newlines_is_refused_before_it_is_read(
    tmp_path: Path, blank: bytes, is_packed: bool
) -> None:
    whole = lines(10) + blank * 2_000_000
    sent = gzip.compress(whole) if is_packed else whole
    error, num_lines, num_bytes = taken(tmp_path, (sent[i : i + 65536] for i in range(0, len(sent), 65536)))
    (told,) = error.lines
    assert told.code == "too_many_blank_lines"
    assert told.line == num_lines <= SPARE_BLANK_LINES + 20 + SLICE_BYTES
    assert f"line {told.line}" in error.message
    assert num_bytes < len(whole) / 50


@pytest.mark.parametrize(
    ("junk", "code", "most"), [(b"x\n", "invalid_json", MAX_ERRORS), (b"{}\n", "missing_field", MAX_ERRORS)]
)
def test_nothing_is_looked_at_after_the_last_error_that_is_told(
    tmp_path: Path, junk: bytes, code: str, most: int
) -> None:
    error, num_lines, _ = taken(tmp_path, iter([lines(5), junk * 4_000_000]))
    assert [one.code for one in error.lines] == [code] * most
    assert num_lines <= 5 + most


def test_nothing_is_looked_at_after_too_many_lines(tmp_path: Path) -> None:
    error, num_lines, _ = taken(tmp_path, iter([lines(5000)]))
    assert [(one.code, one.line) for one in error.lines] == [("too_many_lines", MAX_LINES + 1)]
    assert num_lines == MAX_LINES + 1


def test_a_blank_line_between_requests_is_allowed(put: Callable[..., Response]) -> None:
    spaced = b"\n\n".join(lines(200).splitlines()) + b"\n" * 2000
    answer = put(spaced)
    assert (answer.status_code, answer.json().get("bytes")) == (200, len(spaced)), answer.text


def test_runs_of_newlines_count_as_lines_one_by_one_do() -> None:
    text = b"\n\na\n\n\n \nb\n" + b"\n" * 20 + b"c"
    for size in range(1, 12):
        splitter = LineSplitter(100)
        found = [pair for i in range(0, len(text), size) for pair in splitter.feed(text[i : i + size])]
        found += splitter.close()
        assert found == [(3, b"a"), (7, b"b"), (28, b"c")]
        assert (splitter.num_blank, splitter.offset) == (25, len(text) + 1)
