from typing import Literal

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool

from tests.clients.conftest import KEY, MODEL


@tool
def look(kind: Literal["cat", "dog"]) -> str:
    """Look for an animal."""
    return kind


@pytest.fixture
def chat(url: str) -> ChatAnthropic:
    return ChatAnthropic(model=MODEL, base_url=url, api_key=KEY, max_tokens=90, max_retries=0, timeout=120)


def test_a_chat_and_its_stream(chat: ChatAnthropic) -> None:
    whole = chat.invoke("def read_lines(path):")
    assert isinstance(whole.content, str)
    assert whole.usage_metadata["output_tokens"] > 0
    assert list(chat.stream("def read_lines(path):"))


def test_bound_tools(chat: ChatAnthropic) -> None:
    forced = chat.bind_tools([look], tool_choice="look").invoke("Look for a cat.")
    (call,) = forced.tool_calls
    assert (call["name"], set(call["args"])) == ("look", {"kind"})
