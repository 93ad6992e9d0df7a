"""Answer requests of a claimed shard from the response cache, and prepare entries for the other answers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from worker.store.cache import response_cache
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests.requests import ShardRequest
from worker.store.shards.shards import Claim
from worker.values.caching import (
    DEFAULT_SIMILARITY,
    CacheMode,
    Source,
    cache_key,
    request_digest,
    sampling_digest,
)
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import CacheEntry, NewResult, Payload
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

# One vector for each request, in order; empty for a prompt that has none.
Embed = Callable[[Sequence[ShardRequest]], list[Sequence[float]]]


@dataclass(slots=True)
class Lookup:
    """Outcome of a shard's cache lookup: the answers found, and entries for answers to come."""

    num_asked: int = 0  # copies included
    answers: list[NewResult] = field(default_factory=list)
    entries: dict[int, CacheEntry] = field(default_factory=dict)  # of requests that must run, by request id


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """A worker's access to the response cache of one model."""

    store: Store
    model_fingerprint: str
    ttl: timedelta
    embed: Embed

    def look_up(self, held: Claim) -> Lookup:
        """Look up every request that may use the cache; an unreachable cache has no answers."""
        asked = [request for request in held.requests if self._mode(held, request) is not CacheMode.OFF]
        lookup = Lookup(sum(request.num_copies for request in asked))
        if not asked:
            return lookup
        lookup.entries = {request.id: self._entry(held, request) for request in asked}
        try:
            self._answer_exactly(asked, lookup)
            semantic = [
                request
                for request in asked
                if request.id in lookup.entries
                and self._mode(held, request) is CacheMode.SEMANTIC
                and _has_one_text(request)
            ]
            if semantic:
                self._answer_nearly(semantic, held.cache_similarity or DEFAULT_SIMILARITY, lookup)
        except DATABASE_AWAY as error:
            logger.warning("the response cache does not answer: %s", str(error).splitlines()[0])
        return lookup

    def _mode(self, held: Claim, request: ShardRequest) -> CacheMode:
        mode = CacheMode.OFF if request.digest is None else request.cache or held.cache
        if mode is not CacheMode.SEMANTIC:
            return mode
        params = request.params
        has_own_prompt = isinstance(params, SamplingParams) and params.repeats_prompt
        # The tenant's right may have been withdrawn since.
        return CacheMode.SEMANTIC if held.may_use_semantic_cache and not has_own_prompt else CacheMode.EXACT

    def _entry(self, held: Claim, request: ShardRequest) -> CacheEntry:
        group = sampling_digest(request.params, max_tokens=request.max_tokens)
        digest = request.digest
        if request.timeout_at is not None:  # which is no part of the answer
            digest = request_digest(
                request.prompts,
                request.params,
                max_tokens=request.max_tokens,
                add_special_tokens=request.add_special_tokens,
            )
        return CacheEntry(
            key=cache_key(held.tenant_id, self.model_fingerprint, digest or b""),
            group=cache_key(held.tenant_id, self.model_fingerprint, group),
            ttl=self.ttl,
        )

    def _answer_exactly(self, asked: Sequence[ShardRequest], lookup: Lookup) -> None:
        with self.store.transaction() as session:
            found = response_cache.find(session, {entry.key for entry in lookup.entries.values()})
        for request in asked:
            payload = found.get(lookup.entries[request.id].key)
            if payload is not None:
                del lookup.entries[request.id]
                lookup.answers.append(_answer(request, payload, Source.EXACT_CACHE, None))

    def _answer_nearly(self, asked: Sequence[ShardRequest], least: float, lookup: Lookup) -> None:
        wanted = []
        for request, vector in zip(asked, self.embed(asked), strict=True):
            if vector:
                entry = replace(lookup.entries[request.id], embedding=tuple(vector))
                lookup.entries[request.id] = entry
                wanted.append((request, entry.group, vector))
        with self.store.transaction() as session:
            if not response_cache.has_vectors(session):
                return
            found = response_cache.find_nearest(
                session, [(group, vector) for _, group, vector in wanted], least_similarity=least
            )
        for place, nearest in found.items():
            request = wanted[place][0]
            del lookup.entries[request.id]
            lookup.answers.append(
                _answer(request, nearest.payload, Source.SEMANTIC_CACHE, nearest.similarity)
            )


def _has_one_text(request: ShardRequest) -> bool:
    is_generation = isinstance(request.params, SamplingParams)
    return is_generation and len(request.prompts) == 1 and isinstance(request.prompts[0], str)


def _answer(
    request: ShardRequest, payload: Mapping[str, Any], source: Source, similarity: float | None
) -> NewResult:
    num_prompt_tokens = int(payload["num_prompt_tokens"])
    return NewResult(
        request_id=request.id,
        outcome=Outcome(payload["outcome"]),
        output=payload["output"],
        payload=None if payload["payload"] is None else Payload.from_json(payload["payload"]),
        finish_reason=None if (reason := payload["finish_reason"]) is None else FinishReason(reason),
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=num_prompt_tokens,  # all of them: none was computed
        num_output_tokens=int(payload["num_output_tokens"]),
        source=source,
        similarity=similarity,
        num_copies=request.num_copies,
    )
