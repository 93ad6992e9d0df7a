"""Drop messages in Redis that are not our tickets, before Celery sees them.

Celery and kombu do not check a message's shape: one without a body ends the worker, and one that names
an unknown task is put back, so that it ends the next worker.
"""

import base64
import json
import logging
from collections.abc import Iterable
from typing import Any

from celery import current_app
from kombu.transport import redis as kombu_redis
from redis import Redis

logger = logging.getLogger(__name__)

SHOWN = 200  # of a dropped message, in the log
# Headers that a worker would obey and that our tickets never set.
UNUSED_HEADERS = ("chain", "compression", "errbacks", "eta", "expires", "group", "shadow", "stamps")
# Suffix of the queues for replies to remote commands such as ping: the sender reads them, no worker does.
REPLIES = b".reply.celery.pidbox"
NO_LIMITS: tuple[Any, ...] = (None, [], [None, None])


class NotATicketError(Exception):
    """A message is not one of our tickets. The text says what is wrong with it."""


def check(raw: bytes, tasks: Iterable[str]) -> None:
    """Check that a message is a ticket for one of these tasks.

    Raises:
        NotATicketError: it is not.

    """
    message = _object(_json(raw), "it")
    properties = _object(message.get("properties"), "properties")
    _text(properties.get("delivery_tag"), "delivery_tag")
    delivery = _object(properties.get("delivery_info"), "delivery_info")
    for name in ("exchange", "routing_key"):
        _text(delivery.get(name), name)
    _require(properties.get("body_encoding") == "base64", "body_encoding is not base64")
    _require(message.get("content-type") == "application/json", "content-type is not JSON")
    _require(message.get("content-encoding") == "utf-8", "content-encoding is not utf-8")
    headers = _object(message.get("headers"), "headers")
    _require(bool(_text(headers.get("id"), "id")), "id is empty")
    task = _text(headers.get("task"), "task")
    _require(task in tasks, f"there is no task {task[:SHOWN]!r} here")
    for name in UNUSED_HEADERS:
        _require(not headers.get(name), f"it has {name}")
    _require(headers.get("timelimit") in NO_LIMITS, "it has a time limit")
    _require(headers.get("retries") in (None, 0), "it is a retry")
    _check_body(_text(message.get("body"), "body"))


def _check_body(body: str) -> None:
    try:
        decoded = base64.b64decode(body, validate=True)
    except ValueError:
        raise NotATicketError("body is not base64") from None
    called = _json(decoded)
    _require(isinstance(called, list) and len(called) == 3, "body is no call")
    arguments, named, embedded = called
    _require(named == {}, "body has named arguments")
    _require(isinstance(embedded, dict) and not any(embedded.values()), "body asks for more than one call")
    row_id = arguments[0] if isinstance(arguments, list) and len(arguments) == 1 else None
    _require(isinstance(row_id, int | str) and not isinstance(row_id, bool), "body has not one id")


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise NotATicketError("it is not JSON") from None


def _object(found: Any, name: str) -> dict[str, Any]:
    _require(isinstance(found, dict), f"{name} is no object")
    return dict(found)


def _text(found: Any, name: str) -> str:
    _require(isinstance(found, str) and found.isprintable(), f"{name} is no text")
    return str(found)


def _require(is_met: bool, otherwise: str) -> None:
    if not is_met:
        raise NotATicketError(otherwise)


class _Client(Redis):
    """Redis client whose BRPOP returns only tickets and replies; it drops every other message."""

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        found = super().parse_response(connection, command_name, **options)
        if command_name != "BRPOP" or not found:
            return found
        queue, raw = found
        if queue.endswith(REPLIES):
            return found
        try:
            check(raw, [name for name in current_app.tasks if not name.startswith("celery.")])
        except NotATicketError as error:
            logger.warning("a message in %s is dropped, since %s: %r", queue.decode(), error, raw[:SHOWN])
            return None
        return found


class _QoS(kombu_redis.QoS):
    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (ValueError, TypeError, RecursionError) as error:
            logger.warning("a message that was to be put back is dropped, since it is none: %s", error)
            self._remove_from_indices(tag).execute()


class _Channel(kombu_redis.Channel):
    QoS = _QoS

    def _get_client(self) -> type[Redis]:
        return _Client

    def _deliver_fanout_message(self, message: Any, exchange: str) -> bool:
        try:
            super()._deliver_fanout_message(message, exchange)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            logger.warning("a message to all in %s is dropped: %r", exchange, error)
        return True


class TicketTransport(kombu_redis.Transport):
    """kombu's Redis transport, which passes only tickets on to workers."""

    Channel = _Channel
