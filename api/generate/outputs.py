"""Assembles a request's growing outputs from the feed, and at the end from its Result."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from api.errors import ApiError, RequestFailedError
from worker.contract.feed import Told
from worker.store.requests.result_views import ResultView
from worker.values.outcomes import Outcome
from worker.values.results import ChoiceResult, Logprobs, Payload


@dataclass(frozen=True, slots=True)
class Piece:
    """The new part of one choice."""

    index: int
    offset: int  # characters before it
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class _Choice:
    told: str = ""
    num_tokens: int = 0
    is_finished: bool = False
    has_gap: bool = False


@dataclass(slots=True)
class GrowingOutputs:
    """Passes on text that continues what it has; after a gap it waits for the result, which has all of it."""

    num_tokens: int = 0  # told so far, over all choices
    _choices: dict[int, _Choice] = field(default_factory=dict)

    def take(self, told: Told) -> Piece | None:
        """Return the new part of a choice; None if nothing is new, or after a gap."""
        choice = self._choices.setdefault(told.index, _Choice())
        if choice.has_gap or told.offset != len(choice.told):
            choice.has_gap = True
            return None
        if not (told.text or told.finish_reason or told.logprobs):
            return None
        choice.told += told.text
        choice.num_tokens += told.num_tokens
        self.num_tokens += told.num_tokens
        choice.is_finished = told.finish_reason is not None
        return Piece(told.index, told.offset, told.text, told.logprobs, told.finish_reason)

    def rest(self, result: ResultView) -> Iterator[Piece]:
        """Yield the parts of a completed result that were not streamed.

        Raises:
            RequestFailedError: the result differs from what was streamed, as when a worker died and the next
                one drew other tokens.

        """
        for index, whole in enumerate(choices_of(result)):
            choice = self._choices.setdefault(index, _Choice())
            if not choice.is_finished:
                logprobs = None if whole.logprobs is None else whole.logprobs[choice.num_tokens :]
                if not whole.text.startswith(choice.told):
                    raise RequestFailedError(
                        "the output was begun again and is not what was streamed; its result is another",
                        code="stream_interrupted",
                    )
                text = whole.text[len(choice.told) :]
                yield Piece(index, len(choice.told), text, logprobs, whole.finish_reason)
                choice.is_finished = True


def choices_of(result: ResultView) -> tuple[ChoiceResult, ...]:
    """Return every choice of a completed generation."""
    payload = result.payload or Payload()
    return payload.choices or (ChoiceResult(result.output or "", result.finish_reason or "stop"),)


def failure(result: ResultView) -> ApiError | None:
    """Return the error of a request without a complete output; None if it has one."""
    if result.outcome is Outcome.COMPLETED:
        return None
    return RequestFailedError(result.error_message or "the request failed", code=result.error_code)
