"""Turns a generation request into Sequences, and their Choices into its Completion."""

import hashlib
import secrets
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace

from worker.engine.requests.errors import InvalidRequestError, TooLongError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.requests.stats import ModelInfo
from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.sequences.readout import PromptReadout
from worker.engine.sequences.sequence import Sequence, device_seconds, first_start
from worker.engine.sequences.thoughts import Thoughts
from worker.engine.sequences.vocabulary import check_token_ids
from worker.values.outcomes import FinishReason
from worker.values.results import Choice
from worker.values.sampling import Optimization, OutputFormat, SamplingParams


@dataclass(slots=True)
class OpenRequest:
    """A generation request without a Completion yet, with one Sequence per choice."""

    id: Hashable
    sequences: tuple[Sequence, ...]
    choices: dict[Sequence, Choice] = field(default_factory=dict)  # of Sequences that have ended

    @property
    def unfinished(self) -> list[Sequence]:
        """Sequences whose choice is still open."""
        return [sequence for sequence in self.sequences if sequence not in self.choices]

    def completion(self, *, is_cancelled: bool = False) -> Completion:
        """Return the outcome; call it after every choice has ended."""
        first = self.sequences[0]
        params, readout = first.params, first.readout
        kept = self.sequences
        if params.num_choices > params.n:
            kept = tuple(sorted(kept, key=_mean_logprob, reverse=True)[: params.n])
        choices = tuple(self.choices[sequence] for sequence in kept)
        if is_cancelled:
            choices = tuple(replace(choice, finish_reason=FinishReason.CANCELLED) for choice in choices)
        return Completion(
            id=self.id,
            choices=choices,
            num_prompt_tokens=first.num_prompt_tokens,
            # Cached Blocks of a resumed Sequence may reach past its prompt.
            num_cached_tokens=min(first.num_cached_tokens or 0, first.num_prompt_tokens),
            num_output_tokens=self.num_output_tokens,
            num_guessed_tokens=sum(sequence.num_guessed_tokens for sequence in self.sequences),
            num_right_tokens=sum(sequence.num_right_tokens for sequence in self.sequences),
            prompt_logprobs=tuple(readout.logprobs) if isinstance(readout, PromptReadout) else None,
            prompt_token_ids=(
                tuple(first.token_ids[: first.num_prompt_tokens]) if params.needs_prompt_token_ids else None
            ),
            seconds=device_seconds(self.sequences),
            started_at=self.started_at,
            first_token_at=min(
                (one.first_token_at for one in self.sequences if one.first_token_at is not None), default=None
            ),
        )

    @property
    def started_at(self) -> float | None:
        """`time.monotonic()` at the first start of any choice; None before it."""
        return first_start(self.sequences)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far by all choices."""
        return sum(sequence.num_output_tokens for sequence in self.sequences)


def open_request(
    request: GenerationRequest,
    info: ModelInfo,
    arrivals: Iterator[int],
    eos_token_ids: frozenset[int],
    new_matcher: Callable[[OutputFormat], GrammarMatcher],
    new_thoughts: Callable[[SamplingParams], Thoughts | None],
) -> OpenRequest:
    """Return the open request of a request whose prompt is token ids.

    Raises InvalidRequestError naming the fault in the request.
    """
    prompt, params = list(map(int, request.prompt)), request.params
    prompt = prompt[len(prompt) - params.kept_prompt_tokens(len(prompt), info.max_model_len) :]
    _check(prompt, params, info)
    seed = (secrets.randbits(64) if params.seed is None else params.seed) % 2**64
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos or params.format is not None:
        stop_token_ids |= eos_token_ids
    readout = None
    if params.prompt_logprobs is not None:
        readout = PromptReadout(prompt[1:], params.prompt_logprobs)
    sequences = tuple(
        Sequence(
            request_id=request.id,
            arrival=next(arrivals),
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=params,
            seed=choice_seed(seed, index),
            stop_token_ids=stop_token_ids,
            max_length=min(len(prompt) + params.max_tokens, info.max_model_len),
            readout=readout if index == 0 else None,
            is_generating=params.max_tokens > 0,
            job=request.job,
            share=request.share,
            is_shareable=params.optimization is Optimization.FULL,
            is_urgent=request.priority > 0,
            is_alone=params.optimization is Optimization.NONE,
            matcher=None if params.format is None else new_matcher(params.format),
            thoughts=new_thoughts(params),
        )
        for index in range(params.num_choices)
    )
    return OpenRequest(request.id, sequences)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice, below 2**64: the request's own for the first, a hash of it for others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest(), "little")


def _mean_logprob(sequence: Sequence) -> float:
    logprobs = [one.logprob for one in sequence.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")


def _check(prompt: list[int], params: SamplingParams, info: ModelInfo) -> None:
    if not prompt:
        raise InvalidRequestError("the prompt is empty")
    if len(prompt) + min(1, params.max_tokens) > info.max_model_len:
        raise TooLongError(
            f"the prompt has {len(prompt)} tokens; this model takes at most"
            f" {info.max_model_len - min(1, params.max_tokens)}, so that the output fits"
        )
    check_token_ids(prompt, "the prompt has", info)
    if params.must_fit and len(prompt) + params.max_tokens > info.max_model_len:
        raise TooLongError(
            f"the prompt has {len(prompt)} tokens and max_tokens is {params.max_tokens}; "
            f"the context of this model is {info.max_model_len}"
        )
    named = (*(token for token, _ in params.logit_bias), *params.stop_token_ids)
    check_token_ids(named, "logit_bias or stop_token_ids has", info)
