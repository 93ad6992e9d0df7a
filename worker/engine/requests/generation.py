"""Defines the generation request, its outcome, and the types common to all requests."""

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import StrEnum

from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.logprobs import TokenLogprobs
from worker.engine.requests.sampling import SamplingParams
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.requests.share import ONLY, Share


class FinishReason(StrEnum):
    """Reason why a choice ended."""

    STOP = "stop"  # an end token, a stop string, or a complete grammar
    LENGTH = "length"  # max_tokens, or the model's context is full
    CANCELLED = "cancelled"  # the caller cancelled its request
    ERROR = "error"  # its request could not run or could not finish


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt, as text or token ids, to continue.

    For example `GenerationRequest("a", "Once upon a time", SamplingParams(max_tokens=32))`.
    """

    id: Hashable
    prompt: str | Tokens[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    add_special_tokens: bool = True
    job: Hashable | None = None  # requests of one job are expected to have outputs of similar length
    share: Share = ONLY  # the group whose tokens these are, and its weight
    priority: int = 0  # above 0: urgent, runs before all others
    is_streamed: bool = False  # send its text as Deltas while it runs
    is_cached: bool = True  # it may read from the prefix cache and write to it
    is_alone: bool = False  # its Steps hold no other Sequence
    # Output of an earlier, interrupted run; this run continues after it. Needs one choice and no logprobs.
    # With a seed or greedy sampling, the outcome equals that of a run without interruption.
    output_token_ids: Tokens[int] = ()


@dataclass(frozen=True, slots=True)
class PartialOutput:
    """Output so far of an open request."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One output of a request; `token_ids` includes the token that ended it, `text` does not."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of each of `token_ids`, if asked for


@dataclass(frozen=True, slots=True)
class Delta:
    """Growth of a streamed choice; its Deltas joined in order equal the Choice's text and logprobs."""

    id: Hashable  # of the request
    index: int  # of the choice
    offset: int  # characters of the output before it
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None = None  # of the last one


@dataclass(frozen=True, slots=True)
class Completion:
    """Outcome of one generation request: its choices, at least one, and their common data.

    A request ends as a whole. A failed one has a single empty choice; in a cancelled one every choice is
    cancelled. `text`, `token_ids`, `finish_reason` and `logprobs` are those of the first choice.
    """

    id: Hashable
    choices: tuple[Choice, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # of all choices, also those that `best_of` did not keep
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None  # of each prompt token after the first
    prompt_token_ids: tuple[int, ...] = ()  # the same tokens, if their logprobs are asked for
    error: str | None = None
    is_too_long: bool = False  # the error: the prompt is too long for the model
    prefill_seconds: float = 0.0  # its share of its Steps' time (worker/engine/scheduling/step_meter.py)
    decode_seconds: float = 0.0
    padding_seconds: float = 0.0

    @classmethod
    def failed(
        cls, request_id: Hashable, error: str, num_output_tokens: int = 0, *, is_too_long: bool = False
    ) -> "Completion":
        """Return the outcome of a request that could not run or could not finish."""
        choices = (Choice("", (), FinishReason.ERROR),)
        return cls(request_id, choices, 0, 0, num_output_tokens, error=error, is_too_long=is_too_long)

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason of the first choice."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        """Logprobs of the first choice."""
        return self.choices[0].logprobs


# A reading generates no tokens: its outcome is computed from the hidden states of its own tokens.
ReadingRequest = EmbeddingRequest | ScoringRequest
Reading = Embedding | Scores
Request = GenerationRequest | ReadingRequest
Outcome = Completion | Reading
