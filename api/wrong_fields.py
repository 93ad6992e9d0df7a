"""Explains to a client a field that pydantic refused: its path, and the rule that it breaks.

No message of pydantic's own reaches the client, as these speak of validators and types of Python.
"""

from collections.abc import Mapping, Sequence
from typing import Any

# One message for several of pydantic's types of errors, by the prefix of their names.
SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not a known field; check its spelling",
    "string": "must be a string",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "bool": "must be true or false",
    "dict": "must be an object",
    "model": "must be an object",
    "list": "must be a list",
    "none_required": "must be null",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "date": "must be a date and time with its zone, such as 2026-11-21T12:00:00Z",
    "timezone": "must be a date and time with its zone, such as 2026-11-21T12:00:00Z",
    "greater_than_equal": "must be at least {ge}{given}",
    "greater_than": "must be more than {gt}{given}",
    "less_than_equal": "must be at most {le}{given}",
    "less_than": "must be less than {lt}{given}",
    "string_pattern_mismatch": "must match {pattern}",
    "union_tag_invalid": "{discriminator} must be one of {expected_tags}",
    "union_tag_not_found": "{discriminator} is required",
}
# Our code for several of pydantic's types of errors, by the prefix of their names; docs/errors.md lists them.
CODES = {
    "missing": "missing_field",
    "union_tag_not_found": "missing_field",
    "extra_forbidden": "unknown_field",
    "string_too_": "wrong_length",
    "too_": "wrong_length",
    "greater_than": "out_of_range",
    "less_than": "out_of_range",
    "finite_number": "out_of_range",
    "literal_error": "unknown_value",
    "enum": "unknown_value",
    "union_tag_invalid": "unknown_value",
}
TYPE_ENDINGS = ("_type", "_parsing", "_parsing_size", "_from_float", "none_required")
WRONG_TYPE = "wrong_type"  # no branch of a union takes this type; the message is ours
PREFIXES = sorted(SENTENCES, key=len, reverse=True)
UNITS: tuple[tuple[type, str], ...] = ((str, "characters"), (list, "items"), (dict, "entries"))
OUTER = {"body", "query", "path", "header"}
KEY = "[key]"  # pydantic's mark for an error in a name, not in a value
MAX_NAME_CHARACTERS = 100  # of a field's name in a message
MAX_NUMBER_CHARACTERS = 40


def field_path(error: Mapping[str, Any], body: Any = None) -> str | None:
    """Return the path of an error as a client writes it, `requests[3].prompt`; None for the whole body.

    `body` is the refused value; a part that is no name or index in it is pydantic's name of a union's branch.
    """
    location: Sequence[str | int] = error["loc"]
    is_of_body = not location or location[0] not in OUTER - {"body"}
    if location and location[0] in OUTER:
        location = location[1:]
    if is_of_body and isinstance(body, (dict, list)):
        location = _without_branches(location, body, is_missing=error["type"] == "missing")
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != KEY:
            path += f".{part[:MAX_NAME_CHARACTERS]}" if path else part[:MAX_NAME_CHARACTERS]
    return path or None


def _without_branches(location: Sequence[str | int], body: Any, *, is_missing: bool) -> list[str | int]:
    found: list[str | int] = []
    for part in location:
        is_key = isinstance(body, dict) and part in body
        is_index = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if is_key or is_index:
            body = body[part]
            found.append(part)
    return [*found, location[-1]] if is_missing else found


def code_of(error: Mapping[str, Any]) -> str:
    """Return the code of the rule that a field breaks."""
    kind = error["type"]
    found = next((code for prefix, code in CODES.items() if kind.startswith(prefix)), None)
    return found or (WRONG_TYPE if kind.endswith(TYPE_ENDINGS) else "invalid_value")


def explain(error: Mapping[str, Any]) -> str:
    """Return the rule that a field breaks, as text."""
    sentence = _sentence(error)
    return f"its name {sentence}" if error["loc"] and error["loc"][-1] == KEY else sentence


def _sentence(error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":  # ours
        return str(context["error"])
    if kind == WRONG_TYPE:
        return str(error["msg"])
    if kind.endswith(("too_short", "too_long")):
        return _length(context, error["input"])
    for prefix in PREFIXES:
        if kind.startswith(prefix):
            said = {name: int(value) if _is_whole(value) else value for name, value in context.items()}
            return SENTENCES[prefix].format(**said, given=_given(error["input"]))
    return "is not valid"


def _length(context: Mapping[str, Any], given: object) -> str:
    unit = next((unit for kind, unit in UNITS if isinstance(given, kind)), "items")
    if "max_length" in context:
        return f"must have at most {context['max_length']} {unit}"
    least = context["min_length"]
    return "must not be empty" if least == 1 else f"must have at least {least} {unit}"


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def _given(value: object) -> str:
    written = repr(value) if isinstance(value, (int, float)) else ""
    return f", but is {written}" if 0 < len(written) <= MAX_NUMBER_CHARACTERS else ""
