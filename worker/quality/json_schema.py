"""Judges values by a JSON schema: the keywords that constrain outputs; others are refused, not ignored."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
}
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "minItems": ("array", lambda value, least: len(value) >= least),
    "maxItems": ("array", lambda value, most: len(value) <= most),
    "minProperties": ("object", lambda value, least: len(value) >= least),
    "maxProperties": ("object", lambda value, most: len(value) <= most),
    "minimum": ("number", lambda value, least: value >= least),
    "maximum": ("number", lambda value, most: value <= most),
    "exclusiveMinimum": ("number", lambda value, least: value > least),
    "exclusiveMaximum": ("number", lambda value, most: value < most),
}
ONE, LIST, BY_NAME = "one", "list", "by name"
# Keywords that hold schemas, and how.
SCHEMAS = {
    "items": ONE,
    "additionalProperties": ONE,
    "not": ONE,
    "prefixItems": LIST,
    "allOf": LIST,
    "anyOf": LIST,
    "oneOf": LIST,
    "properties": BY_NAME,
    "$defs": BY_NAME,
    "definitions": BY_NAME,
}
LISTS = {"enum", "required"}
SAY_NOTHING = {"title", "description", "default", "examples", "$schema", "$id", "$comment", "format"}
MAX_DEPTH = 64


class SchemaError(ValueError):
    """A schema is malformed, or has a keyword that is not known here."""


def check_schema(schema: Any) -> None:
    """Raise SchemaError unless values can be judged by this schema."""
    _check(schema, schema, 0)


def is_valid(value: Any, schema: Any) -> bool:
    """Return whether a value is valid by a schema that `check_schema` has accepted."""
    return _is_valid(value, schema, _Judging(schema), 0)


def _check(schema: Any, root: Any, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise SchemaError("a schema must be an object")
    if depth > MAX_DEPTH:
        raise SchemaError(f"schemas are nested more than {MAX_DEPTH} deep")
    for keyword, given in schema.items():
        if keyword in SCHEMAS:
            for inner in _inner(keyword, given):
                _check(inner, root, depth + 1)
        elif keyword == "$ref":
            _resolve(given, root)
        elif keyword not in SAY_NOTHING:
            _check_simple(keyword, given)


def _check_simple(keyword: str, given: Any) -> None:
    """Check a keyword that holds no schemas."""
    if keyword == "type":
        kinds = given if isinstance(given, list) else [given]
        if not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
            raise SchemaError(f"type must be among {', '.join(TYPES)}")
    elif keyword in LISTS:
        if not isinstance(given, list):
            raise SchemaError(f"{keyword} must be a list")
    elif keyword in BOUNDS:
        if not TYPES["number"](given):
            raise SchemaError(f"{keyword} must be a number")
    elif keyword != "const":
        raise SchemaError(f"the keyword {keyword} is not known here")


def _inner(keyword: str, given: Any) -> list[Any]:
    how = SCHEMAS[keyword]
    if how == ONE:
        return [given]
    if not isinstance(given, list if how == LIST else Mapping):
        raise SchemaError(f"{keyword} must be {'a list' if how == LIST else 'an object'}")
    return list(given.values()) if isinstance(given, Mapping) else list(given)


def _resolve(reference: Any, root: Any) -> Any:
    found = root
    if not isinstance(reference, str) or not re.fullmatch(r"#(/[^/]+)*", reference):
        raise SchemaError("$ref must point into the schema, as #/$defs/NAME")
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise SchemaError(f"$ref points to nothing: {reference}")
        found = found[name]
    return found


@dataclass(slots=True)
class _Judging:
    """The whole schema, and what is known: otherwise references could double the work at each depth."""

    root: Any
    known: dict[tuple[int, int], bool] = field(default_factory=dict)  # by ids of value and schema


def _is_valid(value: Any, schema: Any, judging: _Judging, depth: int) -> bool:
    if isinstance(schema, bool):
        return schema
    key = (id(value), id(schema))
    if key not in judging.known:
        judging.known[key] = False  # of a schema that needs itself
        valid = partial(_is_valid, judging=judging, depth=depth + 1)
        judging.known[key] = (
            depth <= MAX_DEPTH
            and _has_its_kind(value, schema)
            and _is_combined(value, schema, judging.root, valid)
            and _holds_valid(value, schema, valid)
        )
    return judging.known[key]


def _has_its_kind(value: Any, schema: Mapping[str, Any]) -> bool:
    """Judge by the keywords that hold no schemas."""
    kinds = schema.get("type", list(TYPES))
    return (
        any(TYPES[kind](value) for kind in (kinds if isinstance(kinds, list) else [kinds]))
        and ("enum" not in schema or any(_equal(value, one) for one in schema["enum"]))
        and ("const" not in schema or _equal(value, schema["const"]))
        and all(
            not TYPES[kind](value) or holds(value, schema[name])
            for name, (kind, holds) in BOUNDS.items()
            if name in schema
        )
    )


def _is_combined(value: Any, schema: Mapping[str, Any], root: Any, valid: Callable[[Any, Any], bool]) -> bool:
    """Judge the value itself by the schemas that this one names."""
    return (
        ("$ref" not in schema or valid(value, _resolve(schema["$ref"], root)))
        and all(valid(value, one) for one in schema.get("allOf", []))
        and ("anyOf" not in schema or any(valid(value, one) for one in schema["anyOf"]))
        and ("oneOf" not in schema or sum(valid(value, one) for one in schema["oneOf"]) == 1)
        and ("not" not in schema or not valid(value, schema["not"]))
    )


def _holds_valid(value: Any, schema: Mapping[str, Any], valid: Callable[[Any, Any], bool]) -> bool:
    """Judge the members of an object, or the items of an array."""
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", [])) and all(
            valid(inner, known.get(name, others)) for name, inner in value.items()
        )
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        return all(map(valid, value, first)) and all(valid(item, rest) for item in value[len(first) :])
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
