from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import KEY, MODEL


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=9)


def test_the_default_mode(openai_url: str) -> None:
    client = instructor.from_openai(OpenAI(base_url=openai_url, api_key=KEY, timeout=120))
    found = client.chat.completions.create(
        model=MODEL,
        response_model=Animal,
        max_retries=1,
        max_tokens=90,
        messages=[{"role": "user", "content": "A cat."}],
    )
    assert isinstance(found, Animal)


def test_the_mode_with_a_schema(openai_url: str) -> None:
    client = instructor.from_openai(
        OpenAI(base_url=openai_url, api_key=KEY, timeout=120), mode=instructor.Mode.JSON_SCHEMA
    )
    found = client.chat.completions.create(
        model=MODEL,
        response_model=Animal,
        max_retries=1,
        max_tokens=90,
        messages=[{"role": "user", "content": "A cat."}],
    )
    assert isinstance(found, Animal)
