"""What no value can end, and what only looks like it."""

import time
from typing import Any

import pytest

from worker.values.endless_schema import is_endless

SELF = {"$ref": "#"}
REQUIRED = {"type": "object", "properties": {"a": SELF}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"type": "object"}, SELF]},
        {"anyOf": [SELF, {"type": "array", "items": SELF, "minItems": 1}]},
        {"oneOf": [SELF]},
        REQUIRED,
        {"type": ["object", "array"], "items": SELF, "minItems": 2, **REQUIRED}
        | {"type": ["object", "array"]},
        {"type": "object", "required": ["b"], "additionalProperties": SELF},
        {"type": "object", "properties": {"a": {"anyOf": [SELF, False]}}, "required": ["a"]},
        {"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 2},
        {"type": "array", "items": [{"type": "null"}, SELF], "minItems": 2},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"allOf": [{"$ref": "#/$defs/a~1b c"}]}}},
    ],
    ids=str,
)
def test_what_no_value_can_end(schema: dict[str, Any]) -> None:
    assert is_endless(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object", "properties": {"a": SELF}},
        {"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]},
        {"properties": {"a": SELF}, "required": ["a"]},  # 7 is valid
        {"anyOf": [SELF, {"type": "null"}]},
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [{"type": "null"}, SELF], "minItems": 1},
        {"const": {"a": 1}, **REQUIRED},
        {"type": "object", "required": ["b"], "additionalProperties": SELF, "patternProperties": {"b": {}}},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/other#"},
        {"$ref": 3},
        {"type": 3, "required": 4, "allOf": 5, "minItems": "x"},
    ],
    ids=str,
)
def test_what_only_looks_like_it(schema: Any) -> None:
    assert not is_endless(schema)


@pytest.mark.parametrize("is_closed", [True, False])
def test_it_takes_time_in_proportion(is_closed: bool) -> None:
    """Far from what squares would take: 40,000 references, forward and back."""
    count = 20_000
    definitions = {
        f"d{i}": {
            "type": "object",
            "properties": {"n": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i - 1}"}},
            "required": ["n"],
        }
        for i in range(count)
    }
    definitions[f"d{count}"] = {"$ref": "#/$defs/d0"} if is_closed else {"type": "null"}
    began = time.process_time()
    assert is_endless({"$ref": "#/$defs/d0", "$defs": definitions}) is is_closed
    assert time.process_time() - began < 20
