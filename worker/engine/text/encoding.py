"""Tokenizes the texts of many requests at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from worker.engine.requests.generation import EngineRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.text.tokenizer import Tokenizer

RequestT = TypeVar("RequestT", bound=EngineRequest)


def encode_requests(requests: Sequence[RequestT], tokenizer: Tokenizer) -> list[RequestT]:
    """Return the requests with token ids in place of texts; each distinct text is tokenized once."""
    encoded: dict[tuple[str, bool], list[int]] = {}
    texts = dict.fromkeys(pair for request in requests for pair in _texts(request))
    if not texts:
        return list(requests)
    for has_special in (True, False):
        chosen = [pair for pair in texts if pair[1] is has_special]
        ids = tokenizer.encode_batch([text for text, _ in chosen], add_special_tokens=has_special)
        encoded |= zip(chosen, ids, strict=True)
    return [_with_ids(request, encoded) for request in requests]


def _texts(request: EngineRequest) -> Iterator[tuple[str, bool]]:
    """Yield each text of a request and whether it gets special tokens."""
    if isinstance(request.prompt, str):
        yield request.prompt, request.add_special_tokens
    if isinstance(request, ScoringRequest):
        yield from ((text, False) for text in request.continuations if isinstance(text, str))


def _with_ids(request: RequestT, encoded: dict[tuple[str, bool], list[int]]) -> RequestT:
    if isinstance(request, ScoringRequest):
        continuations = tuple(
            encoded[text, False] if isinstance(text, str) else text for text in request.continuations
        )
        request = replace(request, continuations=continuations)
    if isinstance(request.prompt, str):
        request = replace(request, prompt=encoded[request.prompt, request.add_special_tokens])
    return request
