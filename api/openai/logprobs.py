"""Writes tokens and their logprobs as OpenAI's clients read them, and those of prompts as vLLM's do."""

import codecs
from collections.abc import Sequence
from typing import Any

from api.inputs.checkpoint import NumberSpelling, Spelling
from worker.values.logprobs import Logprobs, TokenLogprob


class TextOffsets:
    """Finds the character at which each token of a text begins.

    Tokens that share a character begin together. A special token takes no room, unless the text has it there.
    """

    def __init__(self, spelling: Spelling, *, start: int = 0, text: str = "") -> None:
        self._spelling = spelling
        self._start = start
        self._text = text
        self._at = start
        self._is_first = True
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> list[int]:
        """Return the offsets of the next tokens."""
        return [self._next(token_id) for token_id in token_ids]

    def _next(self, token_id: int) -> int:
        offset = self._at
        if self._spelling.is_special(token_id):
            text = self._spelling.token_text(token_id)
            self._at += len(text) * self._text.startswith(text, offset - self._start)
            return offset
        spelled = self._spelling.token_bytes(token_id)
        if self._is_first:
            self._is_first = False
            # Some tokenizers write every word with a space before it, and drop that of the first.
            if spelled.startswith(b" ") and not self._spelling.text_of([token_id]).startswith(" "):
                spelled = spelled[1:]
        self._at += len(self._decoder.decode(spelled))
        return offset


def to_completion_logprobs(
    spelling: Spelling, logprobs: Logprobs, offsets: Sequence[int], *, first_token_id: int | None = None
) -> dict[str, Any]:
    """Return the logprobs of a completion's choice, or of a part of it.

    `first_token_id` is the first token of a prompt that the choice repeats; no logprob of it exists.
    """
    texts = [spelling.token_text(token.token_id) for token in logprobs]
    before = [] if first_token_id is None else [first_token_id]
    return {
        "tokens": [*map(spelling.token_text, before), *texts],
        "token_logprobs": [*(None for _ in before), *(token.logprob for token in logprobs)],
        "top_logprobs": [*(None for _ in before), *(_by_text(spelling, token) for token in logprobs)],
        "text_offset": list(offsets),
    }


def _by_text(spelling: Spelling, token: TokenLogprob) -> dict[str, float]:
    """Return the logprobs of the likeliest tokens and the own one; of tokens spelled alike, all are there."""
    found: dict[str, float] = {}
    own = spelling.token_text(token.token_id)
    for other, logprob in token.top_and_own:
        text = spelling.token_text(other)
        if text in found or (text == own and other != token.token_id):
            text = NumberSpelling().token_text(other)
        found[text] = logprob
    return found


def to_chat_logprobs(spelling: Spelling, logprobs: Logprobs) -> dict[str, Any]:
    """Return the logprobs of a chat choice, or of a part of it."""
    return {"content": to_token_logprobs(spelling, logprobs), "refusal": None}


def to_token_logprobs(spelling: Spelling, logprobs: Logprobs) -> list[dict[str, Any]]:
    """Return each token with its logprob and the most likely tokens at its position."""
    return [
        _to_token(spelling, token.token_id, token.logprob)
        | {
            "top_logprobs": [
                _to_token(spelling, other, logprob)
                for other, logprob in (token.top_and_own if token.top else ())
            ]
        }
        for token in logprobs
    ]


def to_prompt_logprobs(spelling: Spelling, logprobs: Logprobs) -> list[dict[str, Any] | None]:
    """Return logprobs by token id for each token of a prompt, its own first; None for the first token."""
    return [None, *(_to_ranked(spelling, token) for token in logprobs)]


def _to_ranked(spelling: Spelling, token: TokenLogprob) -> dict[str, Any]:
    ranked = {other: (logprob, rank) for rank, (other, logprob) in enumerate(token.top, 1)}
    own = ranked.pop(token.token_id, (token.logprob, token.rank))
    return {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": spelling.token_text(token_id)}
        for token_id, (logprob, rank) in [(token.token_id, own), *ranked.items()]
    }


def _to_token(spelling: Spelling, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = spelling.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
