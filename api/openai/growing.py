"""Turns the parts of a request's outputs into the fields of chunks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from api.inputs.checkpoint import Checkpoint, NumberSpelling, Spelling
from api.openai.answers import call_seed, to_echo
from api.openai.logprobs import TextOffsets, to_chat_logprobs, to_completion_logprobs
from api.parsing.messages import GrowingMessage, finish_reason
from worker.store.requests.requests import NewRequest
from worker.values.delta import Delta
from worker.values.logprobs import Logprobs
from worker.values.requests import Prompt
from worker.values.sampling import SamplingParams


def asked_of(request: NewRequest) -> SamplingParams:
    """Return the parameters of a generation."""
    return request.params if isinstance(request.params, SamplingParams) else SamplingParams()


class GrowingChat:
    """The choices of a chat completion, each told in chunks."""

    def __init__(self, checkpoint: Checkpoint, request: NewRequest, *, own_id: str) -> None:
        self._asked = asked_of(request)
        self._spelling = _token_spelling(checkpoint, self._asked)
        # Told with the first chunk.
        self._prompt: list[int] | None = None
        if self._asked.return_token_ids:
            self._prompt = _token_ids(checkpoint, request, request.prompts[0])
        self._own_id = own_id
        self._messages: dict[int, GrowingMessage] = {}
        # Logprobs and ids of tokens whose text is not certain yet.
        self._waiting: dict[int, tuple[Logprobs, tuple[int, ...]]] = {}

    def feed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the fields of the chunks that a part of an output makes."""
        index, parsing = delta.index, self._asked.parsing
        message = self._messages.setdefault(
            index, GrowingMessage(parsing, seed=call_seed(self._own_id, index))
        )
        logprobs, token_ids = self._waiting.pop(index, ((), ()))
        logprobs, token_ids = logprobs + (delta.logprobs or ()), token_ids + delta.token_ids
        is_end = delta.finish_reason is not None
        found = message.feed(delta.text, is_end=is_end)
        if not found:
            self._waiting[index] = (logprobs, token_ids)
        for i, written in enumerate(found):
            is_last = is_end and i == len(found) - 1
            reason = delta.finish_reason if is_last else None
            choice = {
                "index": index,
                "delta": written,
                "logprobs": to_chat_logprobs(self._spelling, logprobs)
                if i == 0 and delta.logprobs is not None
                else None,
                "finish_reason": finish_reason(reason, parsing, has_calls=message.has_calls),
            }
            if self._asked.return_token_ids:
                choice["token_ids"] = list(token_ids) if i == 0 else []
            prompt, self._prompt = self._prompt, None
            yield {"choices": [choice]} | ({} if prompt is None else {"prompt_token_ids": prompt})


class GrowingCompletion:
    """The choices of a completion, each told in chunks."""

    def __init__(self, checkpoint: Checkpoint, request: NewRequest) -> None:
        self._checkpoint = checkpoint
        self._request = request
        self._asked = asked_of(request)
        self._spelling = _token_spelling(checkpoint, self._asked)
        self._offsets: dict[int, TextOffsets] = {}  # of choices that have begun

    def feed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the fields of the chunk of a part of an output; the first of a choice has its prompt."""
        is_first = delta.index not in self._offsets
        prompt = self._request.prompts[delta.index // self._asked.num_choices]
        echo = to_echo(self._checkpoint, prompt) if is_first and self._asked.echo else ""
        if is_first:
            self._offsets[delta.index] = TextOffsets(self._checkpoint, start=len(echo))
        choice = {
            "index": delta.index,
            "text": echo + delta.text,
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
            if is_first:
                choice["prompt_token_ids"] = _token_ids(self._checkpoint, self._request, prompt)
        yield {"choices": [choice]}

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if delta.logprobs is None:
            return None
        offsets = self._offsets[delta.index].push([token.token_id for token in delta.logprobs])
        return to_completion_logprobs(self._spelling, delta.logprobs, offsets)


def _token_spelling(checkpoint: Checkpoint, asked: SamplingParams) -> Spelling:
    return NumberSpelling() if asked.return_tokens_as_token_ids else checkpoint


def _token_ids(checkpoint: Checkpoint, request: NewRequest, prompt: Prompt) -> list[int]:
    """Return the tokens of a prompt that the engine keeps."""
    ids = prompt
    if isinstance(ids, str):
        ids = tuple(checkpoint.encode(ids, add_special_tokens=request.add_special_tokens))
    params = replace(asked_of(request), max_tokens=request.max_tokens)
    return list(ids[len(ids) - params.kept_prompt_tokens(len(ids), checkpoint.max_model_len) :])
