"""What an output is expected to be, and which outputs are."""

import json
import time

import jsonschema
import pytest

from worker.quality.expected import Expected, ExpectedError
from worker.quality.json_schema import is_valid

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 2},
        "boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "pair": {
            "type": "array",
            "prefixItems": [{"const": 1}, {"type": ["string", "null"]}],
            "items": False,
        },
        "one": {"oneOf": [{"type": "number"}, {"type": "integer"}, {"not": {"type": "number"}}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("given", "right", "wrong"),
    [
        ("Paris", ["Paris", " Paris\n"], ["paris", "Paris.", ""]),
        ({"match": "exact", "value": "a b"}, ["a b"], ["a  b"]),
        ({"match": "regex", "value": "[0-9]{3}(é|b)*"}, ["123", "123ébé"], ["12", "x123", "123 "]),
        (
            {"match": "json", "value": {"a": [1, None], "b": True}},
            ['{"b": true, "a": [1.0, null]}'],
            ["{", "1"],
        ),
        ({"match": "json", "value": {"a": True}}, ['{"a":true}'], ['{"a": 1}', '{"a": true, "b": 1}']),
        (
            {"match": "number", "value": 1234.5, "within": 0.1},
            ["so it is 1,234.45.", "3 + 1231.5 = 1234.5"],
            ["1234", "none"],
        ),
        ({"match": "number", "value": -2}, ["-2", "x = -2.0"], ["2", "-2 or 3"]),
        ({"match": "json_schema", "value": PERSON}, ['{"name": "x"}'], ['{"name": ""}', "{}", "name"]),
    ],
)
def test_an_output_is_as_expected(given: object, right: list[str], wrong: list[str]) -> None:
    expected = Expected.from_json(given)
    assert [expected.is_met(one) for one in right + wrong] == [True] * len(right) + [False] * len(wrong)
    assert Expected.from_json(json.loads(json.dumps(expected.to_json()))) == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3, "must be a text, or an object"),
        ({"match": "like", "value": "x"}, "match: must be one of exact, regex, json, number, json_schema"),
        ({"match": ["exact"], "value": "x"}, "match: must be one of"),
        ({"match": "exact"}, "value: is required"),
        ({"value": "x", "regex": "x"}, "regex: is not a known field"),
        ({"value": 3}, "value: must be a text, as match is exact"),
        ({"match": "regex", "value": "("}, "value: regex: "),
        ({"match": "number", "value": "3"}, "value: must be a number"),
        ({"match": "number", "value": True}, "value: must be a number"),
        ({"match": "number", "value": 3, "within": -1}, "within: must not be negative"),
        ({"match": "exact", "value": "3", "within": 1}, "within: goes with match number only"),
        ({"match": "json_schema", "value": {"pattern": "x"}}, "value: the keyword pattern is not known here"),
        ({"match": "json_schema", "value": {"$ref": "#/$defs/x"}}, r"value: \$ref points to nothing"),
        ({"match": "json_schema", "value": {"items": 3}}, "value: a schema must be an object"),
        ({"match": "json_schema", "value": {"type": "text"}}, "value: type must be among null, boolean"),
    ],
)
def test_a_malformed_rule_is_refused_by_name(given: object, problem: str) -> None:
    with pytest.raises(ExpectedError, match=f"^{problem}"):
        Expected.from_json(given)


def test_schemas_judge_as_the_package_jsonschema_does() -> None:
    judge = jsonschema.Draft202012Validator(PERSON)
    inner = [
        None,
        True,
        0,
        1,
        1.0,
        1.5,
        -1,
        150,
        "",
        "x",
        [],
        [1],
        ["a", None],
        [1, "x"],
        [1, 2],
        [1, None, 3],
        {},
    ]
    inner += [{"name": "y"}, {"name": "y", "boss": {"name": ""}}]
    names = [*PERSON["properties"], "other"]
    values = [*inner, *({"name": "x", name: value} for name in names for value in inner)]
    assert [is_valid(value, PERSON) for value in values] == [judge.is_valid(value) for value in values]
    assert {is_valid(value, PERSON) for value in values} == {True, False}


def test_a_hostile_rule_takes_no_time() -> None:
    again = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]}
    began = time.process_time()
    assert not Expected.from_json({"match": "json_schema", "value": again}).is_met("[" * 40 + "1" + "]" * 40)
    assert not Expected.from_json({"match": "regex", "value": "(a|a)*b"}).is_met("a" * 5000)
    assert time.process_time() - began < 5  # 2**40 judgements would take years


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_json_that_is_nested_too_deep_is_not_as_expected(depth: int) -> None:
    """A model may write anything, and an error here would end the dispatcher."""
    for rule in ({"match": "json", "value": 1}, {"match": "json_schema", "value": {"items": {"$ref": "#"}}}):
        assert not Expected.from_json(rule).is_met("[" * depth + "]" * depth)
