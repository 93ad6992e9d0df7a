"""Collects the Choices of one request's Sequences into its Completion."""

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from worker.engine.requests.generation import Choice, Completion, FinishReason
from worker.engine.sequences.readout import PromptReadout
from worker.engine.sequences.sequence import Sequence


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
            prompt_logprobs=tuple(readout.logprobs) if isinstance(readout, PromptReadout) else None,
            prompt_token_ids=tuple(readout.next_token_ids) if isinstance(readout, PromptReadout) else (),
            prefill_seconds=sum(sequence.prefill_seconds for sequence in self.sequences),
            decode_seconds=sum(sequence.decode_seconds for sequence in self.sequences),
            padding_seconds=sum(sequence.padding_seconds for sequence in self.sequences),
        )

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far by all choices."""
        return sum(sequence.num_output_tokens for sequence in self.sequences)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of a choice, below 2**64: the request's own for the first, a hash of it for others."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest(), "little")


def _mean_logprob(sequence: Sequence) -> float:
    logprobs = [one.chosen for one in sequence.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
