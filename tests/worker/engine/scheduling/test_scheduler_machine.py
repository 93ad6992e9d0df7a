"""Anything may happen between two Steps: the books agree, no Slot is wrong, and everything ends."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.requests.config import ADMISSIONS
from worker.engine.requests.share import ONLY, Share
from worker.engine.scheduling.admission import fair_shares
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

END = 9  # a token that ends an output
BUDGET, ROWS, BLOCK_SIZE, NUM_BLOCKS = 24, 5, 3, 14
LONGEST = BLOCK_SIZE * NUM_BLOCKS
SHARES = [ONLY, Share("a"), Share("b", 3.0), Share("b", 3.0, 2, "one"), Share("b", 3.0, 0, "two")]


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, runs, ends, cancels and clears at random, over a pool that is always too small."""

    @initialize(policy=st.sampled_from(ADMISSIONS), saved_tokens=st.sampled_from([0, 40, 1000]))
    def build(self, policy: str, saved_tokens: int) -> None:
        self.scheduler = make_scheduler(
            NUM_BLOCKS, BLOCK_SIZE, ROWS, BUDGET, policy=policy, saved_tokens=saved_tokens
        )
        self.known = fair_shares.FEW, fair_shares.MOST
        fair_shares.FEW, fair_shares.MOST = 3, 2  # of so few rows
        self.cache = CacheModel(BLOCK_SIZE)
        self.added: list[Sequence] = []

    @rule(
        head=st.sampled_from([(), (1,) * 7, (1,) * 4 + (2,) * 8]),
        tail=st.lists(st.integers(1, 2), max_size=9),
        max_tokens=st.integers(1, 20),
        job=st.sampled_from(["one", "two"]),
        can_stop=st.booleans(),
        is_urgent=st.booleans(),
        is_alone=st.sampled_from([False, False, True]),
        share=st.sampled_from(SHARES),
    )
    def add(
        self,
        head: tuple[int, ...],
        tail: list[int],
        max_tokens: int,
        job: str,
        can_stop: bool,
        is_urgent: bool,
        is_alone: bool,
        share: Share,
    ) -> None:
        prompt = [*head, *tail] or [1]
        stop = frozenset({END}) if can_stop else frozenset[int]()
        max_tokens = min(max_tokens, LONGEST - len(prompt))
        sequence = make_sequence(
            len(self.added), prompt, max_tokens, job=job, stop_token_ids=stop, share=share
        )
        sequence.is_urgent, sequence.is_alone = is_urgent, is_alone
        self.added.append(sequence)
        self.scheduler.add(sequence)

    @property
    def unfinished(self) -> list[Sequence]:
        return [one for one in self.added if one.state is not SequenceState.FINISHED]

    @precondition(lambda self: self.unfinished)
    @rule(tokens=st.lists(st.sampled_from([1, 1, 2, END]), min_size=ROWS, max_size=ROWS))
    def step(self, tokens: list[int]) -> None:
        sampled = self.cache.run(self.scheduler, BUDGET)
        assert self.scheduler.num_running <= ROWS
        for sequence, token in zip(sampled, tokens[: len(sampled)], strict=True):
            sequence.token_ids.append(token)
            if token in sequence.stop_token_ids:
                self.scheduler.finish(sequence, FinishReason.STOP)
            elif sequence.num_output_tokens >= sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.scheduler.finish(data.draw(st.sampled_from(self.unfinished)), FinishReason.CANCELLED)

    @rule()
    def clear(self) -> None:
        self.scheduler.block_pool.clear_cache()
        for sequence in self.added:
            assert all(not self.scheduler.block_pool.match([digest]) for digest in sequence.block_hashes)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            states = [sequence.state for sequence in self.added]
            assert states.count(SequenceState.RUNNING) == self.scheduler.num_running
            assert states.count(SequenceState.WAITING) == self.scheduler.num_waiting

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.finish_all()
        fair_shares.FEW, fair_shares.MOST = self.known

    def finish_all(self) -> None:
        for _ in range(2000):
            if not self.unfinished:
                break
            self.step([1] * ROWS)
        assert not self.unfinished, "livelock"
        assert self.scheduler.block_pool.num_free_blocks == NUM_BLOCKS


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=40)
