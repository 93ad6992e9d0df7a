"""Declares the name and the metadata by which customers know their batches, and the search for them."""

import re
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi import Request as HttpRequest
from pydantic import Field, TypeAdapter, ValidationError

from api.errors import InvalidInputError
from api.inputs.schema import NonEmptyText, Text
from api.wrong_fields import code_of, explain
from worker.store.batches.labels import Labels

MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS, MAX_ENTRIES = 64, 512, 16
ENTRY = re.compile(r"metadata(?:\[(.*)\])?", re.DOTALL)

Name = Annotated[
    NonEmptyText,
    Field(max_length=MAX_VALUE_CHARACTERS, description="As you call it. Several batches may share a name."),
]
Metadata = Annotated[
    dict[
        Annotated[Text, Field(max_length=MAX_KEY_CHARACTERS)],
        Annotated[Text, Field(max_length=MAX_VALUE_CHARACTERS)],
    ],
    Field(max_length=MAX_ENTRIES),
]
_metadata = TypeAdapter(Metadata)

# FastAPI does not know parameters such as `metadata[dataset]=docstrings`.
SEARCH: dict[str, Any] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "Only batches with these entries of metadata: `metadata[dataset]=docstrings`.",
            "schema": {
                "type": "object",
                "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARACTERS},
                "maxProperties": MAX_ENTRIES,
            },
        }
    ]
}


async def _labels(
    http_request: HttpRequest,
    name: Annotated[
        Text | None, Query(max_length=MAX_VALUE_CHARACTERS, description="Only batches of this name.")
    ] = None,
) -> Labels:
    found: dict[str, str] = {}
    for parameter, value in http_request.query_params.multi_items():
        match = ENTRY.fullmatch(parameter)
        if match is None:
            continue
        key = match[1]
        if key is None or key in found:
            problem = "has no key; write metadata[KEY]=VALUE" if key is None else "is given twice"
            raise InvalidInputError(f"{parameter[:100]}: {problem}", param="metadata")
        found[key] = value
    try:
        return Labels(name, _metadata.validate_python(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidInputError(
            f"metadata: {explain(first)}", param="metadata", code=code_of(first)
        ) from error


# What a list of batches is asked for; the route has `openapi_extra=SEARCH`.
LabelsDependency = Annotated[Labels, Depends(_labels)]
