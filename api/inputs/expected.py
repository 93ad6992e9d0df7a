"""Declares the field by which a request says what its output is expected to be."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from worker.quality.expected import Expected, Match

# Read by worker.quality, whose rules and messages these are.
ExpectedField = Annotated[
    Any,
    AfterValidator(Expected.from_json),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {
                        "match": {"enum": [match.value for match in Match], "default": "exact"},
                        "value": {},
                        "within": {"type": "number", "minimum": 0, "default": 0},
                    },
                    "required": ["value"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
    Field(
        description="The right output, by which comparisons judge: a text, or a value with how to `match` it."
        " The engine never sees it."
    ),
]
