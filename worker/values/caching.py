"""Decide which requests always get the same answer, key such answers, and name an answer's source."""

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from worker.values.marks import Marks
from worker.values.requests import Params, Prompt, kind_of
from worker.values.sampling import SamplingParams

_json = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` would make an encoder for each call


class CacheMode(StrEnum):
    """Kind of earlier answers that a request may get instead of being run."""

    OFF = "off"
    EXACT = "exact"  # of the same tokens under the same sampling
    SEMANTIC = "semantic"  # that too, or of a prompt that means nearly the same


class Source(StrEnum):
    """Origin of a Result."""

    ENGINE = "engine"  # run for this request
    DUPLICATE = "duplicate"  # run for an identical request of the batch
    EXACT_CACHE = "exact_cache"
    SEMANTIC_CACHE = "semantic_cache"


def is_deterministic(params: Params) -> bool:
    """Return whether a request always gets the same answer: greedy, seeded, or without sampling."""
    return not isinstance(params, SamplingParams) or params.is_greedy or params.seed is not None


def request_digest(
    prompts: Sequence[Prompt],
    params: Params,
    *,
    max_tokens: int,
    add_special_tokens: bool,
    timeout_seconds: float | None = None,
) -> bytes | None:
    """Return the 16-byte digest that identical requests of one model share; None: answers vary.

    Requests with different timeouts are not identical: one may fail where the other does not.
    """
    if not is_deterministic(params):
        return None
    timeout = () if timeout_seconds is None else (_json(timeout_seconds),)
    own = _json([prompts, add_special_tokens])[1:-1]  # without the brackets: each call takes its time
    return _digest(own, _sampling(params, max_tokens), *timeout)


def semantic_digest(params: Params, *, max_tokens: int, embedding_model: str, marks: Marks) -> bytes:
    """Return the 16-byte digest of what requests must share beside a near embedding, to share an answer."""
    return _digest(_sampling(params, max_tokens), _json(embedding_model), _json(marks))


def cache_key(tenant_id: str, model_fingerprint: str, digest: bytes) -> bytes:
    """Return the 16-byte key under which a model's answer is stored; tenants never share a key."""
    return hashlib.blake2b(
        b"\0".join((tenant_id.encode(), model_fingerprint.encode(), digest)), digest_size=16
    ).digest()


@lru_cache(maxsize=1024)  # the requests of a batch mostly share their parameters
def _sampling(params: Params, max_tokens: int) -> str:
    own = {"max_tokens": max_tokens} if isinstance(params, SamplingParams) else {}
    return _json([kind_of(params), params.to_json() | own])


def _digest(*said: str) -> bytes:
    return hashlib.blake2b(f"[{', '.join(said)}]".encode(), digest_size=16).digest()
