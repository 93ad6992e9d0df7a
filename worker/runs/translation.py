"""Translate stored requests to the engine's, and the engine's outcomes to results."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.generation import Answer, Completion, EngineRequest, GenerationRequest
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.requests.share import ONLY, Share
from worker.store.requests.requests import ShardRequest
from worker.values.outcomes import FinishReason, Outcome
from worker.values.requests import EmbeddingParams, ScoringParams
from worker.values.results import CacheEntry, DeviceSeconds, NewResult, Payload, RequestError
from worker.values.sampling import SamplingParams

PartId = tuple[int, int]  # id of the request, index of the prompt in it


class Parts:
    """Collects the outcomes of a shard's requests, which arrive prompt by prompt."""

    def __init__(self, requests: Iterable[ShardRequest]) -> None:
        self.requests = {request.id: request for request in requests}
        self._arrived: dict[int, dict[int, Answer]] = {}

    def ids(self, request_ids: Iterable[int]) -> list[PartId]:
        """Return the engine's ids for the prompts of these requests."""
        return [
            (request_id, index)
            for request_id in request_ids
            for index in range(len(self.requests[request_id].prompts))
        ]

    def add(self, outcome: Answer) -> tuple[ShardRequest, list[Answer]] | None:
        """Add an outcome; return the request that it completes with outcomes in prompt order, or None."""
        request_id, index = cast("PartId", outcome.id)  # as `to_engine` set it
        request = self.requests[request_id]
        arrived = self._arrived.setdefault(request_id, {})
        arrived[index] = outcome
        if len(arrived) < len(request.prompts):
            return None
        del self._arrived[request_id]
        return request, [arrived[index] for index in range(len(arrived))]


def to_engine(
    request: ShardRequest,
    batch_id: str,
    *,
    job: str | None = None,
    share: Share = ONLY,
    priority: int = 0,
    output_token_ids: Sequence[int] = (),
) -> list[EngineRequest]:
    """Return one engine request for each prompt, with PartIds; raises InvalidRequestError naming a field.

    `output_token_ids` come from an earlier run of the request, which must be one that `can_resume`.
    """
    params = request.params
    prompts = [((request.id, index), prompt) for index, prompt in enumerate(request.prompts)]
    special = request.add_special_tokens
    if isinstance(params, EmbeddingParams):
        return [
            EmbeddingRequest(
                id=part,
                prompt=prompt,
                params=params,
                priority=priority,
                add_special_tokens=special,
                share=share,
            )
            for part, prompt in prompts
        ]
    if isinstance(params, ScoringParams):
        return [
            ScoringRequest(
                part, prompt, params.continuations, priority, add_special_tokens=special, share=share
            )
            for part, prompt in prompts
        ]
    sampling = replace(
        params,
        max_tokens=request.max_tokens,
        min_tokens=min(params.min_tokens, request.max_tokens),
        # Not if reassigning has lowered it.
        must_fit=params.must_fit and request.max_tokens == params.max_tokens,
    )
    is_drawn = params.seed is None and not params.is_greedy
    return [
        GenerationRequest(
            id=part,
            prompt=prompt,
            params=replace(sampling, seed=_seed_of(batch_id, part)) if is_drawn else sampling,
            add_special_tokens=special,
            share=share,
            job=job,
            priority=priority,
            is_streamed=request.is_streamed,
            output_token_ids=output_token_ids,
        )
        for part, prompt in prompts
    ]


def _seed_of(batch_id: str, part: PartId) -> int:
    """Return the seed that every run of this part uses, so that a resumed output continues the same one."""
    request_id, index = part
    digest = hashlib.blake2b(f"{batch_id} {request_id} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def can_resume(request: ShardRequest) -> bool:
    """Return whether a later run can continue a partial output: one prompt, one choice, no logprobs."""
    params = request.params
    return (
        isinstance(params, SamplingParams)
        and len(request.prompts) == 1
        and params.num_choices == 1
        and params.logprobs is None
        and params.prompt_logprobs is None
    )


def is_cancelled(outcome: Answer) -> bool:
    """Return whether an outcome says only that the request was cancelled."""
    if isinstance(outcome, Completion):
        return outcome.finish_reason is FinishReason.CANCELLED
    return outcome.is_cancelled


def num_output_tokens(outcomes: Iterable[Answer]) -> int:
    """Return how many tokens were generated, those of discarded choices included."""
    return sum(outcome.num_output_tokens for outcome in outcomes if isinstance(outcome, Completion))


def to_result(
    request: ShardRequest, outcomes: Sequence[Answer], *, keep: CacheEntry | None = None
) -> NewResult:
    """Return the result of a request from the outcomes of all its prompts, in order.

    A cancelled request that `can_resume` has its text so far. `keep` is the response cache's entry for the
    answer, if the request ran to its end.
    """
    if any(map(is_cancelled, outcomes)):
        return _cut_off(request, outcomes)
    for outcome in outcomes:
        if outcome.error is not None:
            code = "context_length_exceeded" if outcome.is_too_long else "generation_failed"
            result = failed(request, outcome.error, code=code, num_output_tokens=num_output_tokens(outcomes))
            return replace(result, started_at=_first_start(outcomes))
    payload = _payload(request, outcomes)
    first = payload.choices[0] if payload.choices else None
    is_plain = len(payload.choices) == 1 and payload.choices[0].logprobs is None
    repeats_prompt = isinstance(request.params, SamplingParams) and request.params.repeats_prompt
    if first is not None and is_plain and not repeats_prompt:
        payload = replace(payload, choices=(), stop=first.stop)  # the result's own columns have the rest
    return NewResult(
        request_id=request.id,
        outcome=Outcome.COMPLETED,
        output=None if first is None else first.text,
        finish_reason=None if first is None else first.finish_reason,
        num_prompt_tokens=sum(outcome.num_prompt_tokens for outcome in outcomes),
        num_cached_tokens=sum(outcome.num_cached_tokens for outcome in outcomes),
        num_output_tokens=num_output_tokens(outcomes),
        payload=None if payload == Payload() else payload,
        seconds=_device_seconds(outcomes),
        started_at=_first_start(outcomes),
        first_token_at=_first_token(outcomes),
        num_copies=request.num_copies,
        keep=keep,
    )


def _payload(request: ShardRequest, outcomes: Sequence[Answer]) -> Payload:
    """Return all that a result may hold beside its own columns."""
    completions = [outcome for outcome in outcomes if isinstance(outcome, Completion)]
    params = request.params
    asked = params if isinstance(params, SamplingParams) else SamplingParams()
    return Payload(
        choices=tuple(choice for completion in completions for choice in completion.choices),
        prompt_logprobs=tuple(
            completion.prompt_logprobs for completion in completions if completion.prompt_logprobs is not None
        ),
        prompt_token_ids=tuple(
            completion.prompt_token_ids
            for completion in completions
            if completion.prompt_token_ids is not None
        ),
        echoes=request.prompts if asked.echo else (),
        has_token_ids=asked.return_token_ids,
        has_tokens_as_ids=asked.return_tokens_as_token_ids,
        embeddings=tuple(
            struct.pack(f"<{len(outcome.vector)}f", *outcome.vector)
            for outcome in outcomes
            if isinstance(outcome, Embedding)
        ),
        is_base64=isinstance(params, EmbeddingParams) and params.encoding == "base64",
        num_reasoning_tokens=sum(
            choice.num_reasoning_tokens for completion in completions for choice in completion.choices
        ),
        num_guessed_tokens=sum(completion.num_guessed_tokens for completion in completions),
        num_right_tokens=sum(completion.num_right_tokens for completion in completions),
        scores=tuple(
            score for outcome in outcomes if isinstance(outcome, Scores) for score in outcome.continuations
        ),
    )


def _cut_off(request: ShardRequest, outcomes: Sequence[Answer]) -> NewResult:
    only = outcomes[0] if can_resume(request) else None
    return NewResult(
        request_id=request.id,
        outcome=Outcome.CANCELLED,
        output=only.text if isinstance(only, Completion) else None,
        finish_reason=FinishReason.CANCELLED,
        num_prompt_tokens=sum(outcome.num_prompt_tokens for outcome in outcomes),
        num_cached_tokens=sum(outcome.num_cached_tokens for outcome in outcomes),
        num_output_tokens=num_output_tokens(outcomes),
        seconds=_device_seconds(outcomes),
        started_at=_first_start(outcomes),
        num_copies=request.num_copies,
    )


def _first_start(outcomes: Iterable[Answer]) -> float | None:
    return min((one.started_at for one in outcomes if one.started_at is not None), default=None)


def _first_token(outcomes: Iterable[Answer]) -> float | None:
    times = (one.first_token_at for one in outcomes if isinstance(one, Completion))
    return min((time for time in times if time is not None), default=None)


def failed(
    request: ShardRequest, error: str, *, code: str = "generation_failed", num_output_tokens: int = 0
) -> NewResult:
    """Return the result of a request that could not run, or failed before its end."""
    return NewResult(
        request_id=request.id,
        outcome=Outcome.FAILED,
        output=None,
        finish_reason=FinishReason.ERROR,
        num_prompt_tokens=0,
        num_cached_tokens=0,
        num_output_tokens=num_output_tokens,
        error=RequestError(code, error),
        num_copies=request.num_copies,
    )


def _device_seconds(outcomes: Iterable[Answer]) -> DeviceSeconds:
    return sum((outcome.seconds for outcome in outcomes), DeviceSeconds())
