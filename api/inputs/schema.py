"""Defines the base of all bodies that clients send: strict types, no unknown field, storable text."""

from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue

from api.wrong_fields import WRONG_TYPE


def storable(text: str) -> str:
    """Return a text that Postgres can store; raises ValueError for another."""
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must not contain half of a surrogate pair") from error
    return text


def _storable_json(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    waiting: list[JsonValue] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            storable(one)
        elif isinstance(one, float) and not isfinite(one):
            raise ValueError("must not contain NaN or an infinite number")
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
    return value


Text = Annotated[str, AfterValidator(storable)]
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_storable_json)]
NonEmptyText = Annotated[str, Field(min_length=1), AfterValidator(storable)]
Priority = Annotated[
    int,
    Field(
        ge=-100,
        le=100,
        description="Higher runs sooner, among the tenant's own work, and takes the place of what runs with a"
        " lower one, which goes on later. Where lower numbers run sooner, as in vLLM, turn the sign.",
    ),
]

TimeoutSeconds = Annotated[
    float,
    Field(
        gt=0,
        le=30 * 86_400,
        allow_inf_nan=False,
        description="A request without a result so many seconds after its batch was accepted fails with code"
        " `timeout` and keeps its output so far. Default: no limit.",
    ),
]


def one_of(wanted: str, choose: Callable[[Any], str | None]) -> Discriminator:
    """Return a discriminator by a value's type, so that an error names only the rule of one branch.

    For a value of no branch, the client reads that it must be `wanted`.
    """
    return Discriminator(choose, custom_error_type=WRONG_TYPE, custom_error_message=f"must be {wanted}")


def text_or_list(value: object) -> str | None:
    """Choose between the branches `text` and `list`."""
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else None


def text_or_object(value: object) -> str | None:
    """Choose between the branches `text` and `object`; a value that is a model is an object."""
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, (dict, BaseModel)) else None


class Schema(BaseModel):
    """A body that a client sends. Unknown fields are refused, so that a misspelt option is noticed."""

    model_config = ConfigDict(extra="forbid", strict=True)
