"""Configure logs: lines of text for people, or JSON objects for machines, with ids as fields.

    logger.info("shard claimed", extra=fields(batch=batch_id, shard=7))

Must not read settings: the caller passes them. Prompts, outputs and secrets do not belong in a log.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
QUIET = ("httpx", "celery.app.trace", "celery.worker.strategy")  # their lines repeat our own

# Fields of every line about one piece of work, such as an HTTP request. Other threads that work on it get a
# copy of the context, so they see what is added to the dictionary later.
_work: ContextVar[dict[str, object] | None] = ContextVar("_work", default=None)
_of_process: dict[str, object] = {}


def fields(**named: object) -> dict[str, Any]:
    """Return the `extra` of a log call that gives its line these fields; those that are None are left out."""
    return {"fields": named}


@contextmanager
def work(**named: object) -> Iterator[dict[str, object]]:
    """Give every line that is logged in this block these fields; yield them, to add more."""
    token = _work.set({**(_work.get() or {}), **named})
    try:
        yield _work.get() or {}
    finally:
        _work.reset(token)


def add_to_work(**named: object) -> None:
    """Add fields to the lines of the work that is under way here, if any."""
    found = _work.get()
    if found is not None:
        found.update(named)


def add_to_process(**named: object) -> None:
    """Give every later line of this process these fields."""
    _of_process.update(named)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a line: its own, its work's and its process's."""
    found = {**_of_process, **(_work.get() or {}), **getattr(record, "fields", {})}
    return {name: value for name, value in found.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON; a traceback is the field `exception`."""
        entry: dict[str, object] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03}"
            f"{self.formatTime(record, '%z')}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """Formats each record as text, with its fields as `name=value` at the end of the line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line without its traceback."""
        named = [f" {name}={_shown(value)}" for name, value in fields_of(record).items()]
        return super().formatMessage(record) + "".join(named)


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(sign in text for sign in ' "=\n') else text


def under_name(line: str, process: str, log_format: Literal["text", "json"]) -> str:
    """Return a line that another process has printed, under that process's name.

    In JSON it stays the object that it is, with one more field; any other text becomes a `message`.
    """
    if log_format == "text":
        return f"{time.strftime('%H:%M:%S')} {process:<10} | {line}"
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "message": line}
    return json.dumps({"process": process, **found})


def configure_logging(level: str, log_format: Literal["text", "json"]) -> None:
    """Send every log, warning and uncaught error of this process to standard error in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_uncaught(kind: Any, error: Any, traceback: Any) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    logging.getLogger("headrace").critical("uncaught error", exc_info=(kind, error, traceback))
