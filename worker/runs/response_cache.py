"""Answer requests of a claimed shard from the response cache, and prepare entries for the other answers.

Some answers to similar prompts are not used but checked: their requests run, and the outputs are compared. In
the shadow mode that is so for all of them (docs/caching.md).
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from worker.contract.states import Lane
from worker.parsing.parser import parse
from worker.quality.expected import Expected
from worker.store.cache import response_cache
from worker.store.cache.response_cache import Nearest, Sought
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests import requests
from worker.store.requests.requests import ShardRequest
from worker.store.shards.shards import Claim
from worker.values.caching import CacheMode, Source, cache_key, request_digest, semantic_digest
from worker.values.marks import find_marks
from worker.values.outcomes import FinishReason, Outcome
from worker.values.parsing import Parsing
from worker.values.results import CacheEntry, NewResult, Payload
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

# One vector for each request, in order; empty for a prompt that has none.
Embed = Callable[[Sequence[ShardRequest]], list[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Check:
    """An answer to a similar prompt that is not used, but compared with the request's own."""

    similarity: float
    output: str
    parsing: Parsing | None
    expected: Expected | None  # by which the customer judges outputs

    def is_right(self, own: str) -> bool:
        """Return whether it is as expected; if nothing says what is, whether it has the words of `own`."""
        kept, fresh = (parse(text, self.parsing, seed="").content or "" for text in (self.output, own))
        if self.expected is not None:
            return self.expected.is_met(kept)
        return kept.casefold().split() == fresh.casefold().split()


@dataclass(slots=True)
class Lookup:
    """Outcome of a shard's cache lookup: the answers found, and entries for answers to come."""

    num_asked: int = 0  # copies included
    answers: list[NewResult] = field(default_factory=list)
    entries: dict[int, CacheEntry] = field(default_factory=dict)  # of requests that must run, by request id
    checks: dict[int, Check] = field(default_factory=dict)  # of some of them

    def checked(self, result: NewResult) -> NewResult:
        """Return a completed result with what it says of the answer that was not used, if there is one."""
        check = self.checks.get(result.request_id)
        if check is None or result.outcome is not Outcome.COMPLETED:
            return result
        is_right = check.is_right(result.output or "")
        return replace(result, similarity=check.similarity, hit_is_right=is_right)


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """A worker's access to the response cache of one model."""

    store: Store
    model_fingerprint: str
    ttl: timedelta  # of entries, and the longest that a request may ask for
    embed: Embed
    similarity: float = 1.0  # the least of a semantic hit, if a batch names none
    embedding_model: str = ""  # its fingerprint; empty: the served model
    check_share: float = 0.0  # of semantic hits, those that are checked
    is_shadow: bool = False  # also checks what exact requests of batches would get

    def look_up(self, held: Claim) -> Lookup:
        """Look up every request that may use the cache; an unreachable cache has no answers."""
        asked = [request for request in held.requests if self._mode(held, request) is not CacheMode.OFF]
        lookup = Lookup(sum(request.num_copies for request in asked))
        if not asked:
            return lookup
        lookup.entries = {request.id: self._entry(held, request) for request in asked}
        try:
            self._answer_exactly(asked, lookup)
            near = [one for one in asked if one.id in lookup.entries and self._is_near(held, one)]
            if near:
                self._answer_nearly(near, held, lookup)
        except DATABASE_AWAY as error:
            logger.warning("the response cache does not answer: %s", str(error).splitlines()[0])
        return lookup

    def _mode(self, held: Claim, request: ShardRequest) -> CacheMode:
        mode = CacheMode.OFF if request.digest is None else request.cache or held.cache
        # The tenant's right may have been withdrawn since.
        is_semantic = mode is CacheMode.SEMANTIC and held.may_use_semantic_cache and _has_one_text(request)
        return CacheMode.EXACT if mode is CacheMode.SEMANTIC and not is_semantic else mode

    def _is_near(self, held: Claim, request: ShardRequest) -> bool:
        """Return whether answers to similar prompts are looked for, to be used or only to be checked."""
        if self._mode(held, request) is CacheMode.SEMANTIC:
            return True
        # Nobody waits while a prompt is embedded only to be checked.
        return self.is_shadow and held.lane is Lane.BATCH and _has_one_text(request)

    def _entry(self, held: Claim, request: ShardRequest) -> CacheEntry:
        digest = request.digest
        if request.timeout_at is not None:  # which is no part of the answer
            digest = request_digest(
                request.prompts,
                request.params,
                max_tokens=request.max_tokens,
                add_special_tokens=request.add_special_tokens,
            )
        key = cache_key(held.tenant_id, self.model_fingerprint, digest or b"")
        return CacheEntry(key, ttl=self._ttl(request))

    def _ttl(self, request: ShardRequest) -> timedelta:
        asked = request.cache_ttl_seconds
        return self.ttl if asked is None else min(self.ttl, timedelta(seconds=asked))

    def _group(self, held: Claim, request: ShardRequest) -> bytes:
        digest = semantic_digest(
            request.params,
            max_tokens=request.max_tokens,
            embedding_model=self.embedding_model,
            marks=find_marks(str(request.prompts[0])),
        )
        return cache_key(held.tenant_id, self.model_fingerprint, digest)

    def _answer_exactly(self, asked: Sequence[ShardRequest], lookup: Lookup) -> None:
        with self.store.transaction() as session:
            found = response_cache.find(session, {entry.key for entry in lookup.entries.values()})
        for request in asked:
            entry = lookup.entries[request.id]
            known = found.get(entry.key)
            if known is not None and known.age <= entry.ttl:
                del lookup.entries[request.id]
                lookup.answers.append(_answer(request, known.payload, Source.EXACT_CACHE, None))

    def _answer_nearly(self, asked: Sequence[ShardRequest], held: Claim, lookup: Lookup) -> None:
        with self.store.transaction() as session:
            if not response_cache.has_vectors(session):
                return
        embedded = []
        for request, vector in zip(asked, self.embed(asked), strict=True):
            if vector:
                entry = replace(
                    lookup.entries[request.id], embedding=tuple(vector), group=self._group(held, request)
                )
                lookup.entries[request.id] = entry
                embedded.append(request)
        entries = [lookup.entries[request.id] for request in embedded]
        wanted = [Sought(entry.group, entry.embedding or (), entry.ttl) for entry in entries]
        least = held.cache_similarity or self.similarity
        with self.store.transaction() as session:
            found = response_cache.find_nearest(session, wanted, least_similarity=least)
            hits = {embedded[place].id: nearest for place, nearest in found.items()}
            checked = {one.id for one in embedded if one.id in hits and self._is_checked(held, one)}
            expected = requests.expected_of(session, checked)
        for request in embedded:
            if request.id in checked:
                lookup.checks[request.id] = _check(request, hits[request.id], expected.get(request.id))
            elif (hit := hits.get(request.id)) is not None:
                del lookup.entries[request.id]
                lookup.answers.append(_answer(request, hit.payload, Source.SEMANTIC_CACHE, hit.similarity))

    def _is_checked(self, held: Claim, request: ShardRequest) -> bool:
        is_used = self._mode(held, request) is CacheMode.SEMANTIC
        return not is_used or random.random() < self.check_share  # noqa: S311 - no secret


def _check(request: ShardRequest, nearest: Nearest, expected: Expected | None) -> Check:
    parsing = request.params.parsing if isinstance(request.params, SamplingParams) else None
    return Check(nearest.similarity, nearest.payload["output"] or "", parsing, expected)


def _has_one_text(request: ShardRequest) -> bool:
    """Return whether an answer to another prompt may be its answer: its prompt is one text, not repeated."""
    params = request.params
    is_generation = isinstance(params, SamplingParams) and not params.repeats_prompt
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
