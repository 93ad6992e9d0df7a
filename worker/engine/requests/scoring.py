"""Defines the request to score given continuations of a prompt, and its outcome."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.share import ONLY, Share
from worker.values.results import ContinuationScore, DeviceSeconds


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A prompt and its continuations, each as text or token ids.

    Each continuation is tokenized on its own and follows the prompt's tokens, so a space between the two must
    be part of the continuation. Raises InvalidRequestError if there are no continuations.
    """

    id: Hashable
    prompt: str | Sequence[int]
    continuations: Sequence[str | Sequence[int]]
    priority: int = 0  # among readings; higher goes first
    add_special_tokens: bool = True  # to the prompt
    share: Share = ONLY

    def __post_init__(self) -> None:
        if not self.continuations or isinstance(self.continuations, str):
            raise InvalidRequestError(
                f"continuations must be a list with at least one entry, not {self.continuations!r}"
            )


@dataclass(frozen=True, slots=True)
class Scores:
    """Outcome of a ScoringRequest; `continuations` is empty after an error or a cancellation."""

    id: Hashable
    continuations: tuple[ContinuationScore, ...]  # in the order of the request
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    error: str | None = None
    is_cancelled: bool = False
    is_too_long: bool = False  # the error: the prompt is too long for the model
    started_at: float | None = None  # `time.monotonic()` at its first start; None: it never ran
    seconds: DeviceSeconds = DeviceSeconds()  # its share of the time of its Steps
