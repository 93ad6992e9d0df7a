"""Logprobs of prompts, as evaluation harnesses ask for them, against those of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI

from tests.fixtures.deployment import Deployment
from tests.fixtures.shell import Shell
from tests.fixtures.tiny_llama import load_reference, tiny_tokenizer

TEXTS = ["the quick brown fox jumps", "na\xefve caf\xe9, \u6771\u4eac", "x"]
CONTEXT = 256


@pytest.fixture
def client(running: Deployment) -> Iterator[OpenAI]:
    url = f"{running.client.base_url}/v1"
    with OpenAI(base_url=url, api_key="unused", timeout=90, max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def assert_right(directory: Path, prompt: list[int], output: list[int], logprobs: Any, count: int) -> None:
    """The logprobs of prompt and output are those that transformers gives to these tokens."""
    ids = prompt + output
    with torch.inference_mode():
        rows = load_reference(directory)(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-3)
    for row, own, top in zip(rows, logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True):
        assert own in top.values()
        assert max(top.values()) == pytest.approx(row.max().item() if count else own, abs=1e-3)
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(ids)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_an_echo_of_texts_and_of_tokens(
    client: OpenAI, model: str, tiny_model: Path, count: int, max_tokens: int
) -> None:
    ids = [tiny_tokenizer().encode(text).ids for text in TEXTS]
    options: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    options |= {"n": 2, "echo": True}
    options |= {"logprobs": count, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    texts, tokens = (client.completions.create(prompt=prompt, **options) for prompt in (TEXTS, ids))  # type: ignore[arg-type]
    for answer in (texts, tokens):
        assert len(answer.choices) == 2 * len(TEXTS)
        for index, choice in enumerate(answer.choices):
            prompt = ids[index // 2]
            assert choice.text.startswith(TEXTS[index // 2])
            assert choice.prompt_token_ids == prompt  # type: ignore[attr-defined]
            assert len(choice.token_ids) == max_tokens  # type: ignore[attr-defined]
            assert choice.finish_reason == "length"
            assert_right(tiny_model, prompt, choice.token_ids, choice.logprobs, count)  # type: ignore[attr-defined]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2 * max_tokens * len(TEXTS)
    plain = client.completions.create(prompt=TEXTS, **options | {"logprobs": None})
    assert [one.text for one in plain.choices] == [one.text for one in texts.choices]


def test_a_prompt_may_fill_the_context(client: OpenAI, model: str, tiny_model: Path) -> None:
    ids = [2 + index % 300 for index in range(CONTEXT)]
    options: dict[str, Any] = {"model": model, "prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0}
    (choice,) = client.completions.create(**options).choices
    assert_right(tiny_model, ids, [], choice.logprobs, 1)


@pytest.mark.parametrize("count", [None, 0, 2])
@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_says_what_the_whole_answer_says(
    client: OpenAI, model: str, count: int | None, echo: bool
) -> None:
    options: dict[str, Any] = {"model": model, "prompt": TEXTS[:2], "max_tokens": 9, "temperature": 0, "n": 2}
    options |= {"echo": echo, "logprobs": count, "extra_body": {"return_token_ids": True}}
    whole = client.completions.create(**options)
    texts, tokens, ids = ([""] * 4, [[] for _ in range(4)], [[] for _ in range(4)])  # type: ignore[var-annotated]
    begun: set[int] = set()
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            assert hasattr(choice, "prompt_token_ids") == (choice.index not in begun)
            begun.add(choice.index)
            texts[choice.index] += choice.text
            ids[choice.index] += choice.token_ids
            if (found := choice.logprobs) is not None:
                tokens[choice.index] += zip(
                    found.tokens, found.token_logprobs, found.text_offset, strict=True
                )
    assert texts == [choice.text for choice in whole.choices]
    assert ids == [choice.token_ids for choice in whole.choices]  # type: ignore[attr-defined]
    if count is not None:
        said = [choice.logprobs for choice in whole.choices]
        assert tokens == [
            list(zip(one.tokens, one.token_logprobs, one.text_offset, strict=True))  # type: ignore[union-attr,arg-type]
            for one in said
        ]


def test_a_chat_with_the_tokens_of_its_prompt(client: OpenAI, model: str, running: Deployment) -> None:
    options: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    options |= {"max_tokens": 5, "temperature": 0, "logprobs": True}
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = client.chat.completions.create(**options, extra_body=extra | {"prompt_logprobs": 1})
    prompt = running.client.post("/tokenize", json={"messages": options["messages"]}).json()["tokens"]
    assert answer.prompt_token_ids == prompt  # type: ignore[attr-defined]
    first, *others = answer.prompt_logprobs  # type: ignore[attr-defined]
    assert first is None
    for token, found in zip(prompt[1:], others, strict=True):
        assert found[str(token)]["rank"] >= 1
        assert 1 in [one["rank"] for one in found.values()]
    (choice,) = answer.choices
    assert choice.logprobs is not None
    spelled = [token.token for token in choice.logprobs.content or ()]
    assert spelled == [f"token_id:{token}" for token in choice.token_ids]  # type: ignore[attr-defined]
    told: list[int] = []
    for number, chunk in enumerate(client.chat.completions.create(**options, extra_body=extra, stream=True)):
        assert getattr(chunk, "prompt_token_ids", None) == (None if number else prompt)
        told += chunk.choices[0].token_ids  # type: ignore[attr-defined]
    assert told == choice.token_ids  # type: ignore[attr-defined]


def test_a_served_model_is_compared_with_itself_on_a_text(
    running: Deployment, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is named, or found at its address; what is reported is the model's own."""
    shell, text = Shell(str(running.client.base_url), monkeypatch), tmp_path / "text"
    text.write_text(TEXTS[0] * 3)
    found = shell.json("compare", model, f"{running.client.base_url}", "--text", str(text))
    ids = tiny_tokenizer().encode(TEXTS[0] * 3).ids
    directory = Path(running.environment["HEADRACE_MODEL"])
    with torch.inference_mode():
        rows = load_reference(directory)(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = -rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean()
    assert found["num_tokens"] == len(ids) - 1
    assert found["perplexity_a"] == pytest.approx(float(expected.exp()), rel=1e-3)
    assert (found["change"], found["divergence"], found["agreement"]) == (0, pytest.approx(0, abs=1e-6), 1)
