from typing import Literal

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from tests.clients.conftest import KEY, MODEL


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=9)


@tool
def look(kind: Literal["cat", "dog"]) -> str:
    """Look for an animal."""
    return kind


@pytest.fixture
def chat(openai_url: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=openai_url,
        api_key=KEY,
        max_tokens=90,
        temperature=0,
        max_retries=0,
        timeout=120,
    )


def test_a_chat_its_stream_and_its_batch(chat: ChatOpenAI) -> None:
    whole = chat.invoke("def read_lines(path):", max_tokens=12)
    parts = [chunk.content for chunk in chat.stream("def read_lines(path):", max_tokens=12)]
    assert "".join(parts) == whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert len(chat.batch(["one", "two", "three"], max_tokens=3)) == 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: ChatOpenAI, method: str) -> None:
    found = chat.with_structured_output(Animal, method=method).invoke("A cat.")
    assert isinstance(found, Animal)


def test_bound_tools(chat: ChatOpenAI) -> None:
    free = chat.bind_tools([look]).invoke("Look for a cat.", max_tokens=20)
    assert free.response_metadata["finish_reason"]
    forced = chat.bind_tools([look], tool_choice="look").invoke("Look for a cat.")
    (call,) = forced.tool_calls
    assert (call["name"], set(call["args"])) == ("look", {"kind"})


def test_embeddings(openai_url: str) -> None:
    embeddings = OpenAIEmbeddings(
        model=MODEL, base_url=openai_url, api_key=KEY, check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_documents(["one", "two"])) == 2
