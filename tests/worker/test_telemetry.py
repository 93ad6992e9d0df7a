"""Every line of a log can be parsed, and says which batch it is about."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from worker import telemetry
from worker.telemetry import JsonFormatter, TextFormatter, add_to_work, fields, under_name, work

TEXT = "%(levelname)s %(message)s"


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.setattr(telemetry, "_of_process", {})  # another test may have named this process
    yield io.StringIO()
    logging.getLogger("told").handlers.clear()


def logger(output: io.StringIO, formatter: logging.Formatter) -> logging.Logger:
    handler = logging.StreamHandler(output)
    handler.setFormatter(formatter)
    made = logging.getLogger("told")
    made.addHandler(handler)
    return made


def test_a_line_of_json_has_its_fields_and_those_of_its_work(output: io.StringIO) -> None:
    log = logger(output, JsonFormatter())
    with work(request_id="abc"):
        add_to_work(tenant="acme")
        log.warning("shard %s", "claimed", extra=fields(batch="batch_1", shard=7, key=None))
    log.warning("another")
    first, second = map(json.loads, output.getvalue().splitlines())
    named = {name: first.pop(name) for name in ("request_id", "tenant", "batch", "shard")}
    assert named == {"request_id": "abc", "tenant": "acme", "batch": "batch_1", "shard": 7}
    assert first.pop("time")
    assert first == {"level": "warning", "logger": "told", "message": "shard claimed"}
    assert set(second) == {"time", "level", "logger", "message"}


def test_a_traceback_is_a_field_of_one_line(output: io.StringIO) -> None:
    error = ValueError("two\nlines")
    logger(output, JsonFormatter()).error("it failed", exc_info=error)
    (line,) = output.getvalue().splitlines()
    assert json.loads(line)["exception"].endswith("ValueError: two\nlines")


def test_a_line_of_text_ends_with_its_fields(output: io.StringIO) -> None:
    logger(output, TextFormatter(TEXT)).warning("said", extra=fields(batch="batch_1", error="two words"))
    assert output.getvalue() == 'WARNING said batch=batch_1 error="two words"\n'


def test_lines_of_other_processes_get_their_name() -> None:
    ours = '{"message": "shard claimed", "batch": "batch_1"}'
    assert json.loads(under_name(ours, "gpu", "json")) == {"process": "gpu", **json.loads(ours)}
    for theirs in ("Traceback (most recent call last):", "[1, 2]", "null", ""):
        found = json.loads(under_name(theirs, "gpu", "json"))
        assert (found["process"], found["message"]) == ("gpu", theirs)
        assert found["time"]
    assert under_name("said", "gpu", "text").endswith(" gpu        | said")


def test_an_uncaught_error_is_one_line_of_json() -> None:
    code = "from worker.telemetry import configure_logging; configure_logging('info', 'json'); 1 / 0"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert json.loads(line)["exception"].endswith("ZeroDivisionError: division by zero")
