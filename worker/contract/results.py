"""One request's outcome, on its way from the engine to the store."""

from dataclasses import dataclass
from datetime import timedelta

from worker.contract.caching import Source
from worker.contract.states import Outcome


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request has no complete output. `code` is stable; `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """What a request cost on the device: for its prompt's tokens, its output's, and filling beside them."""

    prefill: float = 0.0
    decode: float = 0.0
    padding: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Under what an answer is kept in the response cache, and for how long."""

    key: bytes  # of model, prompt and sampling
    group: bytes  # of model and sampling
    ttl: timedelta
    embedding: tuple[float, ...] | None = None  # of the prompt, for the semantic cache


@dataclass(frozen=True, slots=True)
class NewResult:
    """What the store records of one request, once."""

    request_id: int
    outcome: Outcome
    output: str | None
    finish_reason: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    error: RequestError | None = None
    seconds: DeviceSeconds = DeviceSeconds()
    source: Source = Source.ENGINE
    similarity: float | None = None  # of the prompt whose answer it is, from the semantic cache
    num_copies: int = 1  # requests of its shard that it answers: itself, and those identical to it
    keep: CacheEntry | None = None  # for whoever asks the same later
