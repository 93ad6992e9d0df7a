"""Define a request's result, as it goes from the engine to the store and from there to the client."""

import base64
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from worker.values.caching import Source
from worker.values.logprobs import Logprobs, TokenLogprob, finite
from worker.values.outcomes import FinishReason, Outcome
from worker.values.requests import Prompt, to_prompts


@dataclass(frozen=True, slots=True)
class RequestError:
    """Reason that a request has no complete output. `code` is stable; `message` is for people."""

    code: str
    message: str


TIMEOUT = RequestError("timeout", "timeout_seconds had passed before this request was done")


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """Device time of a request, in seconds: for its prompt's tokens, its output's tokens, and padding."""

    prefill: float = 0.0
    decode: float = 0.0
    padding: float = 0.0

    def __add__(self, other: "DeviceSeconds") -> "DeviceSeconds":
        """Return the sum of each kind."""
        return DeviceSeconds(
            self.prefill + other.prefill, self.decode + other.decode, self.padding + other.padding
        )


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Keys and lifetime of an answer in the response cache."""

    key: bytes  # of tenant, model, prompt and sampling
    ttl: timedelta
    group: bytes = b""  # of all that a semantic hit must share; empty: no embedding
    embedding: tuple[float, ...] | None = None  # of the prompt, for the semantic cache


# A request's entry in a list of outputs: a text, the texts of its choices, or nothing (yet).
Output = str | list[str] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One output of a request."""

    text: str  # without the token that ended it
    finish_reason: FinishReason
    logprobs: Logprobs | None = None  # of each token, if asked for
    # With the token that ended it; known to the engine, and stored if asked for.
    token_ids: tuple[int, ...] = ()
    num_reasoning_tokens: int = 0  # known to the engine, not stored
    stop: str | None = None  # the stop string that ended it; None: something else did


@dataclass(frozen=True, slots=True)
class ContinuationScore:
    """Natural logarithms of the probability of each token of a continuation, given all tokens before it."""

    logprobs: tuple[float, ...]
    is_greedy: bool  # each token is the most likely one
    token_ids: tuple[int, ...] = ()  # known to the engine, not stored

    @property
    def logprob(self) -> float:
        """The logprob of the whole continuation."""
        return sum(self.logprobs)


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """Output so far of a request without a result."""

    token_ids: Sequence[int]
    text: str
    model_id: int | None = None  # in `served_models`, of the model that generated it; the engine knows none
    started_at: float | None = None  # `time.monotonic()` of this process when the engine first ran it


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call of a tool loop. It is done once it has an answer or an error."""

    id: str
    name: str
    arguments: str  # as the model wrote them
    answer: str | None = None  # of the endpoint
    error: str | None = None  # why there is no answer
    status_code: int | None = None
    has_failed: bool = False  # the endpoint could not be asked, or did not answer the question
    seconds: float = 0.0  # over all attempts
    attempts: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the call is over."""
        return self.answer is not None or self.error is not None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, without what is unset, that `from_json` reads back."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, False)}


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """One output of a tool loop that called tools, with these calls."""

    number: int  # in its conversation, from 1
    output: str
    calls: tuple[MadeCall, ...]
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_guessed_tokens: int = 0
    num_right_tokens: int = 0
    seconds: DeviceSeconds = DeviceSeconds()
    started_at: float | None = None  # `time.monotonic()` of the process that ran it; stored apart

    @property
    def is_done(self) -> bool:
        """Whether all of its calls are over."""
        return all(call.is_done for call in self.calls)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return {
            "number": self.number,
            "output": storable(self.output),
            "calls": [call.to_json() for call in self.calls],
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_reasoning_tokens": self.num_reasoning_tokens,
            "num_guessed_tokens": self.num_guessed_tokens,
            "num_right_tokens": self.num_right_tokens,
            "prefill_seconds": self.seconds.prefill,
            "decode_seconds": self.seconds.decode,
            "padding_seconds": self.seconds.padding,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild what `to_json` wrote."""
        known = dict(value)
        seconds = [known.pop(f"{kind}_seconds") for kind in ("prefill", "decode", "padding")]
        calls = tuple(MadeCall(**call) for call in known.pop("calls"))
        return cls(**known, calls=calls, seconds=DeviceSeconds(*seconds))


@dataclass(frozen=True, slots=True)
class Payload:
    """Parts of a Result beside one text. Choices and scores are grouped by prompt, in order."""

    choices: tuple[Choice, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()  # by prompt; of each token after the first
    prompt_token_ids: tuple[tuple[int, ...], ...] = ()  # by prompt, if asked for
    echoes: tuple[Prompt, ...] = ()  # the prompts as they were sent, if the answer repeats them
    has_token_ids: bool = False  # the client reads the token ids of prompts and choices
    has_tokens_as_ids: bool = False  # the client reads each token of logprobs as its id
    embeddings: tuple[bytes, ...] = ()  # by prompt; little-endian float32 values
    is_base64: bool = False  # the client reads embeddings as base64
    scores: tuple[ContinuationScore, ...] = ()
    num_reasoning_tokens: int = 0  # of all choices
    num_guessed_tokens: int = 0  # of all choices; by the engine, which verified them
    num_right_tokens: int = 0  # of these, the right ones
    stop: str | None = None  # the stop string of an only choice that is not among the choices here
    tool_turns: tuple[ToolTurn, ...] = ()  # of a tool loop, those before its last output

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, without what is empty, that `from_json` reads back."""
        value = {
            "choices": [
                {"text": storable(choice.text), "finish_reason": choice.finish_reason}
                | ({} if choice.logprobs is None else {"logprobs": _to_json(choice.logprobs)})
                | ({} if choice.stop is None else {"stop": choice.stop})
                | ({"token_ids": choice.token_ids} if self.has_token_ids else {})
                for choice in self.choices
            ],
            "prompt_logprobs": [_to_json(logprobs) for logprobs in self.prompt_logprobs],
            "prompt_token_ids": self.prompt_token_ids,
            "echoes": self.echoes,
            "has_token_ids": self.has_token_ids,
            "has_tokens_as_ids": self.has_tokens_as_ids,
            "embeddings": [base64.b64encode(vector).decode() for vector in self.embeddings],
            "is_base64": self.is_base64,
            "scores": [
                {"logprobs": [finite(one) for one in score.logprobs], "is_greedy": score.is_greedy}
                for score in self.scores
            ],
            "num_reasoning_tokens": self.num_reasoning_tokens,
            "num_guessed_tokens": self.num_guessed_tokens,
            "num_right_tokens": self.num_right_tokens,
            "stop": self.stop,
            "tool_turns": [turn.to_json() for turn in self.tool_turns],
        }
        return {name: found for name, found in value.items() if found}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild what `to_json` wrote."""
        return cls(
            choices=tuple(
                Choice(
                    choice["text"],
                    FinishReason(choice["finish_reason"]),
                    None if (found := choice.get("logprobs")) is None else _from_json(found),
                    token_ids=tuple(choice.get("token_ids", ())),
                    stop=choice.get("stop"),
                )
                for choice in value.get("choices", ())
            ),
            prompt_logprobs=tuple(_from_json(logprobs) for logprobs in value.get("prompt_logprobs", ())),
            prompt_token_ids=tuple(map(tuple, value.get("prompt_token_ids", ()))),
            echoes=to_prompts(value.get("echoes", ())),
            has_token_ids=value.get("has_token_ids", False),
            has_tokens_as_ids=value.get("has_tokens_as_ids", False),
            embeddings=tuple(base64.b64decode(vector) for vector in value.get("embeddings", ())),
            is_base64=value.get("is_base64", False),
            scores=tuple(
                ContinuationScore(tuple(score["logprobs"]), score["is_greedy"])
                for score in value.get("scores", ())
            ),
            num_reasoning_tokens=value.get("num_reasoning_tokens", 0),
            num_guessed_tokens=value.get("num_guessed_tokens", 0),
            num_right_tokens=value.get("num_right_tokens", 0),
            stop=value.get("stop"),
            tool_turns=tuple(map(ToolTurn.from_json, value.get("tool_turns", ()))),
        )


@dataclass(frozen=True, slots=True)
class NewResult:
    """Result of one request, which the store records once."""

    request_id: int
    outcome: Outcome
    output: str | None  # the first choice's text
    finish_reason: FinishReason | None  # the first choice's
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    error: RequestError | None = None
    payload: Payload | None = None  # None: output says it all
    seconds: DeviceSeconds = DeviceSeconds()
    started_at: float | None = None  # `time.monotonic()` of this process when the engine first ran it
    first_token_at: float | None = None  # likewise when it had its first output token
    source: Source = Source.ENGINE
    similarity: float | None = None  # to the prompt whose answer the semantic cache gave, or was checked
    hit_is_right: bool | None = None  # of a semantic hit that was not used, to check it; None: any other
    num_copies: int = 1  # requests of its shard that it answers: its own, and identical ones
    keep: CacheEntry | None = None  # for later identical requests


def storable(text: str) -> str:
    """Return a text that Postgres accepts: NUL, which a model can generate, becomes U+FFFD."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def to_floats(vector: bytes) -> list[float]:
    """Return the values of an embedding from its bytes in a Payload."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def num_bytes(output: Output) -> int:
    """Return how many bytes of UTF-8 an output takes in a list of outputs."""
    return sum(len(text.encode()) for text in ([output] if isinstance(output, str) else output or ()))


def _to_json(logprobs: Logprobs) -> list[list[Any]]:
    return [token.to_json() for token in logprobs]


def _from_json(value: Iterable[list[Any]]) -> Logprobs:
    return tuple(TokenLogprob.from_json(token) for token in value)
