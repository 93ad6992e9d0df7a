"""Defines the plan of a Step, which the Scheduler makes, and the Step's output."""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from worker.engine.requests.generation import Completion, Reading
from worker.engine.sequences.sequence import Sequence
from worker.values.delta import Delta


class ScheduledSequence(NamedTuple):
    """A Sequence's part of a Step: its tokens [start, start + num_tokens) run through the model.

    A tuple, as each Step makes one for each Sequence.
    """

    sequence: Sequence
    start: int
    num_tokens: int  # with its guesses
    is_sampled: bool  # its last known token is included, so the Step chooses the next one
    guesses: tuple[int, ...] = ()  # tokens after the last known one, which the Step verifies
    # The place among the guesses of the one that each follows; -1: the last known token; empty: a chain.
    parents: tuple[int, ...] = ()

    @property
    def num_known(self) -> int:
        """Number of its tokens that are no guesses."""
        return self.num_tokens - len(self.guesses)

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The guesses between the last known token and the next one: none, then up to each guess."""
        if not self.guesses:
            return [()]
        parents = self.parents or range(-1, len(self.guesses) - 1)
        paths: list[tuple[int, ...]] = [()]
        for token_id, parent in zip(self.guesses, parents, strict=True):
            paths.append((*paths[parent + 1], token_id))
        return paths

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int) -> Self:
        """Return the part of a Sequence with its next `num_tokens` uncomputed tokens."""
        is_last = num_tokens == sequence.num_uncomputed_tokens
        return cls(sequence, sequence.num_computed_tokens, num_tokens, is_last and sequence.is_generating)


@dataclass(frozen=True)
class StepPlan:
    """All that the Scheduler tells the model runner about one Step."""

    entries: tuple[ScheduledSequence, ...]
    is_for_few: bool = False  # True: other running Sequences are left out
    most_rows: int | None = None  # of its Sequences, beside other Steps; None: it runs alone

    @property
    def is_beside(self) -> bool:
        """Whether it leaves Sequences, and a share of the threads, to other Steps at the same time."""
        return self.most_rows is not None

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens that the Step runs through the model."""
        return sum(entry.num_tokens for entry in self.entries)

    @cached_property
    def num_guesses(self) -> int:
        """Number of them that are guesses."""
        return sum(len(entry.guesses) for entry in self.entries)

    @cached_property
    def is_decode(self) -> bool:
        """Whether each Sequence runs no other known token than its newest one, and there is a Sequence."""
        return bool(self.entries) and all(
            entry.is_sampled and entry.num_tokens == 1 + len(entry.guesses) for entry in self.entries
        )

    @cached_property
    def needs_host(self) -> bool:
        """Whether the host has to see the logits of a Sequence."""
        return any(entry.sequence.has_logit_rules or entry.sequence.needs_logprobs for entry in self.entries)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results of a Step: numbers of new tokens by request id, and outcomes of requests that ended."""

    num_new_tokens: dict[Hashable, int]
    completions: tuple[Completion, ...]
    readings: tuple[Reading, ...] = ()
    deltas: tuple[Delta, ...] = ()  # of streamed requests
