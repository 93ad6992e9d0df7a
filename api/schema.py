"""What every shape that a client sends has in common: strict, nothing unknown, text that can be stored."""

from math import isfinite
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue


def _storable(text: str) -> str:
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
            _storable(one)
        elif isinstance(one, float) and not isfinite(one):
            raise ValueError("must not contain NaN or an infinite number")
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
    return value


Text = Annotated[str, AfterValidator(_storable)]
JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_storable_json)]
NonEmptyText = Annotated[Text, Field(min_length=1)]


class Schema(BaseModel):
    """What a client sends. Unknown fields are refused: a misspelt option must not pass unseen."""

    model_config = ConfigDict(extra="forbid", strict=True)
