"""Draws conversations of all kinds and cuts them into what is read and what is learned."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import facts, structured, tools
from .template import BOS, EOS, render

MAX_CODE_CHARACTERS = 500
# Shares of the kinds of conversations.
KINDS = {"chat": 22, "code": 12, "prose": 4, "json": 30, "raw_json": 8, "tools": 34}
ASK = (facts.small_talk, facts.module, facts.python, facts.yes_or_no, facts.arithmetic, facts.everyday)
TASKS = (structured.enumeration, structured.repeat, structured.label)
JSON = (
    structured.label,
    structured.extract,
    structured.describe,
    structured.by_schema,
    structured.about_anything,
    structured.about_anything,
)
SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer in one sentence.",
    "You answer questions.",
    "You are a friendly assistant.",
    "Be brief.",
    "You help with Python.",
    "You read texts with care.",
)
SENTENCE = re.compile(r"[A-Z][^.!?:\n]{20,160}\.(?=\s)")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a document: the model learns to write it from token `learned_from` on, or only reads it."""

    text: str
    learned_from: int | None


@dataclass(frozen=True, slots=True)
class Material:
    """Texts of the corpus that conversations quote."""

    code: Sequence[str]
    sentences: Sequence[str]

    @classmethod
    def of(cls, snippets: Sequence[str], prose: Sequence[str]) -> "Material":
        """Choose short definitions and whole sentences."""
        starts = ("def ", "class ", "import ", "from ", "async def ")
        code = [text for text in snippets if len(text) <= MAX_CODE_CHARACTERS and text.startswith(starts)]
        sentences = [found[0] for text in prose for found in SENTENCE.finditer(text)]
        return cls(code, sentences)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the functions that are offered. If `is_raw`, the first message is the prompt as it is."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    is_raw: bool = False

    def parts(self) -> Iterator[Part]:
        """Yield the text in parts: prompts, and the answers that follow them, each with its end token."""
        read = ""
        for i, message in enumerate(self.messages):
            if message["role"] != "assistant":
                continue
            if self.is_raw:
                prompt = BOS + self.messages[0]["content"]
                whole = prompt + message["content"] + EOS
            else:
                prompt = render(self.messages[:i], self.tools, begins_turn=True)
                whole = render(self.messages[: i + 1], self.tools, begins_turn=False).removesuffix("\n\n")
            assert whole.startswith(prompt)
            yield Part(prompt[len(read) :], None)
            # A grammar begins JSON that nobody asked for: by itself, the model should not begin it.
            is_asked = "JSON" in self.messages[i - 1]["content"] and not self.is_raw
            is_json = message["content"].startswith(("{", "["))
            yield Part(whole[len(prompt) :], int(is_json and not is_asked))
            read = whole


def _exchange(asked: str, answered: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def _chat(rng: random.Random, _: Material) -> Conversation:
    messages = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.65:
            messages += _exchange(*rng.choice(ASK)(rng))
        else:
            messages += _exchange(*rng.choice(TASKS)(rng, structured.any_question))
    return Conversation(messages)


def _code(rng: random.Random, material: Material) -> Conversation:
    """Ask with the head of a definition, or with what it should do."""
    text = rng.choice(material.code).strip()
    head = re.match(r"(?s).*?^(?:async )?(?:def|class) [^\n]*", text, re.MULTILINE)
    asked = head[0] if head else text.partition("\n")[0]
    doc = re.search(r'"""([A-Z][^"\n]{10,100}\.)', text)
    if doc and rng.random() < 0.4:
        asked = rng.choice((f"Write this in Python: {doc[1]}", f"Write a function. {doc[1]}", f"# {doc[1]}"))
    return Conversation(_exchange(asked, text))


def _prose(rng: random.Random, material: Material) -> Conversation:
    """Ask with the beginning of a sentence; the answer has the whole of it."""
    text = rng.choice(material.sentences)
    words = text.split(" ")
    return Conversation(_exchange(" ".join(words[: rng.randint(2, 5)]), text))


def _any_text(rng: random.Random, material: Material) -> str:
    chance = rng.random()
    if chance < 0.2:
        return rng.choice(material.code).partition("\n")[0]
    if chance < 0.4:
        return rng.choice(material.sentences)
    return structured.any_question(rng)


def _json(rng: random.Random, material: Material) -> Conversation:
    messages = []
    for _ in range(rng.choice((1, 1, 1, 1, 2))):
        messages += _exchange(*rng.choice(JSON)(rng, lambda r: _any_text(r, material)))
    return Conversation(messages)


def _raw_json(rng: random.Random, material: Material) -> Conversation:
    answered = ""
    while not answered.startswith(("{", "[")):
        asked, answered = rng.choice(JSON)(rng, lambda r: _any_text(r, material))
    return Conversation(_exchange(asked + rng.choice(("", "\n", " ", "\n\n")), answered), is_raw=True)


def _tools(rng: random.Random, _: Material) -> Conversation:
    return Conversation(*tools.conversation(rng, lambda r: r.choice(ASK)(r)))


DRAW = {
    "chat": _chat,
    "code": _code,
    "prose": _prose,
    "json": _json,
    "raw_json": _raw_json,
    "tools": _tools,
}


def conversation(number: int, material: Material) -> Conversation:
    """Return the conversation of this number, always the same for the same material."""
    rng = random.Random(f"conversation {number}")  # noqa: S311
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    found = DRAW[kind](rng, material)
    if not found.is_raw and rng.random() < 0.3:
        found.messages.insert(0, {"role": "system", "content": rng.choice(SYSTEM)})
    return found
