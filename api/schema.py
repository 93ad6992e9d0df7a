"""What every shape that a client sends has in common: strict, nothing unknown, text that can be stored."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not contain the NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("must not contain half of a surrogate pair") from error
    return text


Text = Annotated[str, AfterValidator(_storable)]
NonEmptyText = Annotated[Text, Field(min_length=1)]


class Schema(BaseModel):
    """What a client sends. Unknown fields are refused: a misspelt option must not pass unseen."""

    model_config = ConfigDict(extra="forbid", strict=True)
