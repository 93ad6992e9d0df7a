"""Defines the Sequence: one choice's tokens in the engine and their progress through the scheduler."""

import sys
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from worker.engine.requests.share import ONLY, Share
from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.sequences.readout import Readout
from worker.engine.sequences.thoughts import Thoughts
from worker.values.logprobs import TokenLogprob
from worker.values.results import DeviceSeconds
from worker.values.sampling import SamplingParams


class SequenceState(StrEnum):
    """State of a Sequence; only the Scheduler changes it."""

    WAITING = "waiting"  # holds no Blocks; `add` and a preemption move it here
    RUNNING = "running"  # holds Blocks and a row of the block table; an admission moves it here
    FINISHED = "finished"  # holds nothing; `finish` moves it here, and it never leaves


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice's tokens, prompt then output, with their scheduling state."""

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
    # Limit of its tokens, prompt and output; the Engine sets it.
    max_length: int = sys.maxsize
    # Tokens chosen by the running Step and not on the host yet: 0 or 1.
    num_pending_tokens: int = 0
    # Tokens whose keys and values are in the KV cache: in the end all but the newest.
    num_computed_tokens: int = 0
    # Maximum of num_computed_tokens so far: computing a token below it again is recomputation.
    max_computed_tokens: int = 0
    started_at: float | None = None  # `time.monotonic()` at the first admission
    first_token_at: float | None = None  # likewise when its first output token was chosen, if in this run
    # Prompt tokens found in the prefix cache at the first admission; None before it.
    num_cached_tokens: int | None = None
    # A new list at each admission, so its identity tells one admission from another.
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of full Blocks of known tokens
    num_hashed_blocks: int = 0  # Blocks of block_table that came from the prefix cache or were offered to it
    row: int | None = None
    is_in_step: bool = False  # in one of the Steps that run side by side, so it has to stay as it is
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of each output token, if asked for
    readout: Readout | None = None  # collects other results from its rows
    is_generating: bool = True  # False: no token follows its own; it ends when they are computed
    is_shareable: bool = True  # its Blocks may go to the prefix cache
    is_urgent: bool = False  # somebody waits for it: it runs before all others
    is_alone: bool = False  # its Steps hold no other Sequence
    matcher: GrammarMatcher | None = None
    thoughts: Thoughts | None = (
        None  # before the output that the matcher matches; None: over, or not followed
    )
    num_guessed_tokens: int = 0  # and verified
    num_right_tokens: int = 0  # of these, the right ones
    # Its share of the time of its Steps.
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    padding_seconds: float = 0.0
    # Read for every Sequence in every Step, so computed once.
    is_greedy: bool = field(init=False)
    has_logit_rules: bool = field(init=False)
    needs_logprobs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_greedy = self.params.is_greedy
        self.has_logit_rules = self.params.has_logit_rules or self.thoughts is not None
        self.needs_logprobs = self.params.needs_logprobs

    def end_thoughts(self) -> None:
        """Let the matcher match what follows."""
        self.thoughts = None
        self.has_logit_rules = self.params.has_logit_rules

    def advance(self, start: int, end: int) -> tuple[int, int]:
        """Count its tokens [start, end) as computed.

        Returns how many of them are the prompt's and were computed for the first time, and how many again.
        """
        if start >= self.num_prompt_tokens and start >= self.max_computed_tokens:  # nearly always
            self.num_computed_tokens = self.max_computed_tokens = end
            return 0, 0
        num_again = max(0, min(end, self.max_computed_tokens) - start)
        num_new = max(0, min(end, self.num_prompt_tokens) - start - num_again)
        self.num_computed_tokens = end
        self.max_computed_tokens = max(end, self.max_computed_tokens)
        return num_new, num_again

    def keep_guess(self) -> None:
        """Count a guess that turned out right as computed; its token is the newest one."""
        self.num_computed_tokens += 1
        self.max_computed_tokens = max(self.max_computed_tokens, self.num_computed_tokens)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Number of tokens still to run through the model, including a pending one."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_tokens_left(self) -> int:
        """The most tokens that may be added to the known ones."""
        return self.max_length - len(self.token_ids)

    @property
    def is_at_end(self) -> bool:
        """True if known and pending tokens reach `max_length`, so that no Step may add another."""
        return len(self.token_ids) + self.num_pending_tokens >= self.max_length

    @property
    def next_row(self) -> int:
        """Position of the first row that is still needed: the readout's next row, else the newest token."""
        if self.readout is not None and self.readout.next_row < self.readout.end_row:
            return self.readout.next_row
        return len(self.token_ids) - 1

    @property
    def may_be_held(self) -> bool:
        """True for a generation that no client waits for, so that a batch policy may hold it back."""
        return self.is_generating and not self.is_urgent

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens


def first_start(sequences: Iterable[Sequence]) -> float | None:
    """Return `started_at` of the Sequence that started first; None if none has."""
    return min((one.started_at for one in sequences if one.started_at is not None), default=None)


def device_seconds(sequences: Collection[Sequence]) -> DeviceSeconds:
    """Return the shares of these Sequences in the time of their Steps, together."""
    shares = (
        DeviceSeconds(one.prefill_seconds, one.decode_seconds, one.padding_seconds) for one in sequences
    )
    return sum(shares, DeviceSeconds())
