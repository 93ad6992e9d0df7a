"""Assembles a request's growing outputs from the feed, and at the end from its Result."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from api.errors import ApiError, RequestFailedError
from worker.store.requests.result_views import ResultView
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice, Payload


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

    def take(self, delta: Delta) -> bool:
        """Add a part of a choice; return whether it is new and comes after no gap."""
        choice = self._choices.setdefault(delta.index, _Choice())
        if choice.has_gap or delta.offset != len(choice.told):
            choice.has_gap = True
            return False
        if not (delta.text or delta.finish_reason or delta.logprobs):
            return False
        choice.told += delta.text
        choice.num_tokens += delta.num_tokens
        self.num_tokens += delta.num_tokens
        choice.is_finished = delta.finish_reason is not None
        return True

    def rest(self, result: ResultView) -> Iterator[Delta]:
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
                        "The output was generated again after a failure and differs from what was streamed.",
                        code="stream_interrupted",
                    )
                text = whole.text[len(choice.told) :]
                yield Delta(
                    result.position,
                    index,
                    len(choice.told),
                    text,
                    logprobs=logprobs,
                    finish_reason=whole.finish_reason,
                )
                choice.is_finished = True


def choices_of(result: ResultView) -> tuple[Choice, ...]:
    """Return every choice of a completed generation."""
    payload = result.payload or Payload()
    reason = FinishReason(result.finish_reason or FinishReason.STOP)
    return payload.choices or (Choice(result.output or "", reason),)


def failure(result: ResultView) -> ApiError | None:
    """Return the error of a request without a complete output; None if it has one."""
    if result.outcome is Outcome.COMPLETED:
        return None
    return RequestFailedError(result.error_message or "The request failed.", code=result.error_code)
