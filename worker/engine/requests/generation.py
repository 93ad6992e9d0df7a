"""Defines the generation request, its outcome, and the types common to all requests."""

from collections.abc import Hashable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.requests.share import ONLY, Share
from worker.values.logprobs import Logprobs
from worker.values.outcomes import FinishReason
from worker.values.results import Choice, DeviceSeconds
from worker.values.sampling import ParameterError, SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt, as text or token ids, to continue; raises InvalidRequestError naming the parameter at fault.

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
    # Output of an earlier, interrupted run; this run continues after it. Needs one choice and no logprobs.
    # With a seed or greedy sampling, the outcome equals that of a run without interruption.
    output_token_ids: Tokens[int] = ()

    def __post_init__(self) -> None:
        try:
            self.params.check()
        except ParameterError as error:
            raise InvalidRequestError(str(error)) from error


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
    num_guessed_tokens: int = 0  # and verified, right or not
    num_right_tokens: int = 0  # of the output tokens, those that were guessed
    prompt_logprobs: Logprobs | None = None  # of each prompt token after the first, if asked for
    prompt_token_ids: tuple[int, ...] | None = None  # if the params need them
    error: str | None = None
    is_too_long: bool = False  # the error: the prompt is too long for the model
    seconds: DeviceSeconds = DeviceSeconds()  # its share of the time of its Steps
    started_at: float | None = None  # `time.monotonic()` at its first start; None: it never ran
    first_token_at: float | None = None  # likewise at its first token; None: an earlier run chose it, or none

    @classmethod
    def failed(
        cls,
        request_id: Hashable,
        error: str,
        num_output_tokens: int = 0,
        *,
        is_too_long: bool = False,
        started_at: float | None = None,
    ) -> "Completion":
        """Return the outcome of a request that could not run or could not finish."""
        return cls(
            request_id,
            (Choice("", FinishReason.ERROR),),
            num_prompt_tokens=0,
            num_cached_tokens=0,
            num_output_tokens=num_output_tokens,
            error=error,
            is_too_long=is_too_long,
            started_at=started_at,
        )

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
    def logprobs(self) -> Logprobs | None:
        """Logprobs of the first choice."""
        return self.choices[0].logprobs


# A reading generates no tokens: its outcome is computed from the hidden states of its own tokens.
ReadingRequest = EmbeddingRequest | ScoringRequest
Reading = Embedding | Scores
EngineRequest = GenerationRequest | ReadingRequest
Answer = Completion | Reading
