"""What schemathesis cannot know: which model is served, and ids of what there is. Runs in its environment.

Without them nearly every case ends at the door. Only values of the right form are replaced, so a case that
must be refused still must. A case is changed the same way each time, as failures are tried again.
"""

import json
import os
from typing import Any
from zlib import crc32

import schemathesis

IDS: dict[str, list[str]] = json.loads(os.environ["FUZZ_IDS"])
MODEL = os.environ["FUZZ_MODEL"]
KEY, NO_PREFIX = os.environ["FUZZ_KEY"], "hr_none"  # without its own key, all else would end at the door
MOST_CHARACTERS = 64  # of an id
SHARE, SHARE_DELETED = 60, 5  # of a hundred ids, those that become known ones
FEW_TOKENS = 3  # are generated: what is thrown at is the door
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# Which of them a route has that generates as much as fits unless it is told.
LIMIT_OF = {"/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens"}
LEAST_SECONDS = 60.0  # for one request: a 504 after a shorter time is what was asked for


def _known(name: str, value: object, share: int) -> Any:
    """Return a known id in place of an id, now and then."""
    known = IDS.get(name)
    if not known or not isinstance(value, str) or not 0 < len(value) <= MOST_CHARACTERS:
        return value
    number = crc32(value.encode(errors="replace"))
    return known[number // 100 % len(known)] if number % 100 < share else value


def _named(value: Any) -> Any:
    """Return a body whose models are the one that is served, and whose files exist."""
    if isinstance(value, list):
        return [_named(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _named(one) for name, one in value.items()}
    if isinstance(found.get("model"), str) and found["model"]:
        found["model"] = MODEL
    seconds = found.get("timeout_seconds")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < LEAST_SECONDS:
        found["timeout_seconds"] = LEAST_SECONDS
    for name in LIMITS:
        limit = found.get(name)
        if isinstance(limit, int) and limit > FEW_TOKENS:
            found[name] = FEW_TOKENS
    for name in ("previous_response_id", "input_file_id"):
        if name in found:
            found[name] = _known(name, found[name], SHARE)
    return found


@schemathesis.hook
def before_call(_context: Any, case: Any, _options: Any) -> None:
    """Put what exists into a case."""
    case.body = _named(case.body)
    if isinstance(case.body, dict) and (limit := LIMIT_OF.get(case.path)):
        case.body.setdefault(limit, FEW_TOKENS)
    share = SHARE_DELETED if case.method.upper() == "DELETE" else SHARE
    for name, value in dict(case.path_parameters or {}).items():
        if isinstance(value, str) and len(value) > len("hr_") and KEY.startswith(value):
            case.path_parameters[name] = NO_PREFIX
            continue
        kind = "message_batch_id" if "/messages/batches" in case.path and name == "batch_id" else name
        case.path_parameters[name] = _known(kind, value, share)
