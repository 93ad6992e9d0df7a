from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import KEY, MODEL


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=9)


def model(openai_url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=openai_url, api_key=KEY))


def test_text(openai_url: str) -> None:
    agent = Agent(model(openai_url), model_settings={"max_tokens": 12})
    found = agent.run_sync("def read_lines(path):")
    assert found.usage.output_tokens > 0


def test_the_default_mode_of_structured_output(openai_url: str) -> None:
    agent = Agent(model(openai_url), output_type=Animal, model_settings={"max_tokens": 90}, retries=0)
    assert isinstance(agent.run_sync("A cat.").output, Animal)
