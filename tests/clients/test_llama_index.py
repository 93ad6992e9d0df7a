from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from tests.clients.conftest import KEY, MODEL


def llm(openai_url: str, *, is_chat: bool) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=openai_url,
        api_key=KEY,
        is_chat_model=is_chat,
        max_tokens=12,
        temperature=0,
        max_retries=0,
        timeout=120,
        context_window=1024,
    )


def test_a_chat_and_its_stream(openai_url: str) -> None:
    found = llm(openai_url, is_chat=True)
    messages = [ChatMessage(role="user", content="def read_lines(path):")]
    whole = found.chat(messages)
    *_, last = found.stream_chat(messages)
    assert last.message.content == whole.message.content


def test_a_completion(openai_url: str) -> None:
    assert llm(openai_url, is_chat=False).complete("import os").text
