"""The tokens of a request's choice inside the engine, and where the scheduler has got to with them."""

import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from worker.engine.requests.logprobs import TokenLogprobs
from worker.engine.requests.sampling import SamplingParams
from worker.engine.requests.share import ONLY, Share
from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.sequences.readout import Readout


class SequenceState(StrEnum):
    """Where a Sequence is; only the scheduler moves it."""

    WAITING = "waiting"  # holds no Blocks; new, or preempted
    RUNNING = "running"  # holds Blocks and a row of the block table
    FINISHED = "finished"  # holds nothing


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice's tokens: the prompt, then what was generated."""

    request_id: Hashable
    arrival: int  # order of admission; lower goes first
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    job: Hashable | None = None
    share: Share = ONLY
    state: SequenceState = SequenceState.WAITING
    # The most tokens it may have, prompt and output; the Engine sets it.
    max_length: int = sys.maxsize
    # Chosen by a Step that runs, and not seen by the host yet: 0 or 1.
    num_pending_tokens: int = 0
    # Tokens whose keys and values are in the cache; the scheduler works until all but the newest are.
    num_computed_tokens: int = 0
    # The most it ever was: what lies below and is computed again is recomputation.
    max_computed_tokens: int = 0
    # Prompt tokens found in the prefix cache at the first admission; None before it.
    num_cached_tokens: int | None = None
    # A new list at each admission, so that its identity tells one admission from the next.
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of full Blocks of known tokens
    num_hashed_blocks: int = 0  # how many of block_table are in the prefix cache or were offered to it
    row: int | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each output token, if asked for
    readout: Readout | None = None  # what is read off its rows beside next tokens
    is_generating: bool = True  # False: the readout is all that is wanted
    is_shareable: bool = True  # its Blocks may go to the prefix cache
    is_urgent: bool = False  # somebody waits for it: it goes before all others
    is_alone: bool = False  # its Steps hold nothing else
    matcher: GrammarMatcher | None = None
    # Its share of the Steps it was in.
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    padding_seconds: float = 0.0
    # Read for every Sequence in every Step, so worked out once.
    has_logit_rules: bool = field(init=False)
    needs_logprobs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_logit_rules = self.params.has_logit_rules
        self.needs_logprobs = self.params.needs_logprobs

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens still to run through the model, a pending one among them."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def is_at_end(self) -> bool:
        """Whether it is full with its pending token, so that no Step can add another."""
        return len(self.token_ids) + self.num_pending_tokens >= self.max_length

    @property
    def next_row(self) -> int:
        """Position of the first row still to be read; for a next token, that of the newest token."""
        if self.readout is not None and self.readout.next_row < self.readout.end_row:
            return self.readout.next_row
        return len(self.token_ids) - 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens
