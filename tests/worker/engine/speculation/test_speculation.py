"""When guesses are verified, and how many."""

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import islice

import pytest

from tests.fixtures.scheduling import make_sequence
from tests.fixtures.speculation import OUTPUT, PROMPT, Fixed, FixedTimes, Oracle, make, plan_for
from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation import speculation as module
from worker.engine.speculation.proposer import DRAFT, MAX_GUESSES, NO_GUESS, GuessedTokens, Kind
from worker.engine.speculation.speculation import Speculation
from worker.engine.speculation.step_times import StepTimes


def chosen(guesses: tuple[int, ...], num_right: int | None = None) -> list[NextToken]:
    """What a Step chooses for a Sequence of which so many guesses are right, None: all."""
    return [NextToken(one) for one in (*guesses[:num_right], 0)]


def confirm(made: Speculation, plan: StepPlan, *, num_right: int | None = None) -> None:
    """End the Step: so many guesses of each Sequence are right, None: all."""
    rows = [chosen(one.guesses, num_right) for one in plan.entries]
    made.took(plan, made.times.seconds(plan.num_tokens) or 1.0, [one.sequence for one in plan.entries], rows)


def test_free_tokens_are_all_used_and_dear_ones_never() -> None:
    free, dear = make(1.0, 0.0), make(0.0, 1.0)
    assert [len(one.guesses) for one in free.extend(plan_for(free, 2), 512).entries] == [MAX_GUESSES] * 2
    assert not dear.extend(plan_for(dear, 2), 512).num_guesses


def test_as_many_as_pay() -> None:
    """With half of the guesses right and a token for a tenth of the Step, the third is not worth it."""
    made = make(1.0, 0.1)
    plan = made.extend(plan_for(made), 512)
    rates = [(2 - 0.5**count) / (1.1 + 0.1 * count) for count in range(13)]
    assert plan.num_guesses == max(range(13), key=rates.__getitem__) == 2


def test_a_full_batch_gets_none_where_a_single_request_gets_some() -> None:
    made = make(1.0, 0.1)
    assert made.extend(plan_for(made), 512).num_guesses
    assert not made.extend(plan_for(made, 64), 512).num_guesses


def test_wrong_guesses_end_and_are_tried_again() -> None:
    made = make(1.0, 0.1)
    steps = []
    for _ in range(200):
        plan = made.extend(plan_for(make(1, 1)), 512)
        confirm(made, plan, num_right=0)
        steps.append(plan.num_guesses)
    assert steps[0] > 0
    tries = [index for index, number in enumerate(steps) if number]
    assert len(tries) < 12
    assert tries[-1] > module.TRY_EVERY
    assert steps[tries[-1]] <= module.TRIED


def test_right_guesses_become_longer() -> None:
    made = make(1.0, 0.1)
    first = made.extend(plan_for(made), 512)
    plan = first
    for _ in range(10):
        confirm(made, plan)
        plan = made.extend(plan_for(make(1, 1)), 512)
    assert plan.num_guesses > first.num_guesses
    assert made._stats.lookup_right_tokens == made._stats.lookup_guessed_tokens > 0


def test_steps_without_guesses_are_measured_now_and_then() -> None:
    """At first often, to know what guesses save; then in proportion to what the Step without them costs."""
    made = make(1.0, 0.0)
    counts = []
    given = plan_for(made)
    for _ in range(200):
        plan = made.extend(given, 512)
        confirm(made, plan)
        counts.append(plan.num_guesses)
    least, most = module.PLAIN_EVERY
    assert [index for index, number in enumerate(counts) if not number] == [
        least,
        *range(least + most + 1, 200, most + 1),
    ]


def test_limits_hold() -> None:
    made = make(1.0, 0.0, num_blocks=3)
    assert made.extend(plan_for(made), 4).num_guesses == 3, "the Step's tokens"
    assert made.extend(plan_for(made, num_tokens=2), 512).num_guesses == 0, "a Step with a prompt"
    made = make(1.0, 0.0, num_blocks=1)
    plan = made.extend(plan_for(made), 512)
    assert plan.num_guesses == 1, "the last Slot of the only Block"
    assert plan.num_tokens == 2
    made = make(1.0, 0.0)
    plan = plan_for(made)
    plan.entries[0].sequence.max_length = 6
    assert made.extend(plan, 512).num_guesses == 2, "with the token after them the output is at its end"
    plan.entries[0].sequence.num_pending_tokens = 1
    assert made.extend(plan, 512).num_guesses == 0, "its newest token is not known"


def test_looking_for_guesses_takes_little_of_the_time_where_there_are_none() -> None:
    made = make(1e-6, 0.0)
    nothing = Fixed(NO_GUESS)
    made.use([nothing])
    plan = plan_for(made)
    for _ in range(10 * module.PAUSE_STEPS):
        assert not made.extend(plan, 512).num_guesses
    assert 1 <= nothing.num_looks <= 11, "a look takes more than a Step here"


def one_of(kind: Kind) -> GuessedTokens:
    return GuessedTokens((10,), (kind,))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Dear:
    """Takes time to guess tokens for a share of the Sequences."""

    clock: Clock
    seconds: float  # for each Sequence
    share: float
    chance: random.Random
    seconds_per_pass: float | None = None
    shares: tuple[float, ...] | None = None

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        self.clock.now += self.seconds * len(sequences)
        guess = GuessedTokens((10, 11), (("lookup", (2, 0)),) * 2)
        return [
            guess.first(limit) if self.chance.random() < self.share else NO_GUESS
            for _, limit in zip(sequences, limits, strict=True)
        ]

    def ended(self, sequence: Sequence) -> None:
        pass


@pytest.mark.parametrize("load", [0.0, 0.1, 0.3], ids="load {}".format)
@pytest.mark.parametrize("right", [0.5, 0.8, 0.95], ids="right {}".format)
def test_a_full_batch_that_gains_nothing_spends_a_hundredth_of_its_time_at_most(
    right: float, load: float
) -> None:
    """Steps take longer for other programs too, by `load` on average: that must not pass for savings."""
    clock, chance = Clock(), random.Random(1)
    made = Speculation([], BlockPool(100), EngineStats(), block_size=4, clock=clock)
    made.use([Dear(clock, 20e-6, 0.6, chance)])
    plan = plan_for(made, 64)
    taken = without = 0.0
    for _ in range(600):
        extended = made.extend(plan, 512, others_wait=True)
        # Verifying a token takes 0.94 of the time of a token in a Step without guesses.
        alone = 1e-3 + 240e-6 * extended.num_tokens
        rows = []
        for entry in extended.entries:
            wrong = (index for index in range(len(entry.guesses)) if chance.random() >= right)
            rows.append(chosen(entry.guesses, next(wrong, None)))
        seconds = alone * (1 + (chance.expovariate(1 / load) if load else 0))
        made.took(extended, seconds, [one.sequence for one in extended.entries], rows)
        taken += alone
        without += sum(map(len, rows)) / 64 * (1e-3 + 240e-6 * 64)
    assert taken + clock.now <= 1.01 * without


def test_a_proposer_in_debt_leaves_the_others_theirs() -> None:
    clock = Clock()
    dear, right = (
        Dear(clock, 1.0, 1.0, random.Random(1), seconds_per_pass=0.0),
        Oracle({PROMPT: [OUTPUT]}, 0.0),
    )
    made = Speculation([dear, right], BlockPool(100), EngineStats(), block_size=4, clock=clock)
    made.times = FixedTimes(1e-3, 1e-5)  # type: ignore[assignment]
    plan = plan_for(made, 2)
    counts = []
    for _ in range(60):
        extended = made.extend(plan, 512)
        confirm(made, extended)
        counts.append(extended.num_guesses)
    assert clock.now <= 3 * 2.0, "looks for two Sequences, each of which costs more than 2,000 Steps"
    assert counts[-20:].count(0) <= 2
    costly, cheap = made._accounts
    assert costly.balance < 0 < cheap.balance


def test_a_pass_must_be_better_than_what_others_offer() -> None:
    """A draft gains by itself, and nothing beside a lookup whose tokens are as right and cost no pass."""

    def asked(*others: Fixed) -> int:
        draft = Fixed(GuessedTokens((20,) * 4, (DRAFT,) * 4), seconds_per_pass=0.1)
        made = make(1.0, 0.1)
        made.use([*others, draft])
        plan = plan_for(made, 2)
        for entry in plan.entries[: len(others)]:  # it is sure for one of the two Sequences
            for _ in range(40):
                made.rates.add(entry.sequence, one_of(("lookup", (2, 0))), [True])
        for entry in plan.entries:
            for _ in range(40):
                made.rates.add(entry.sequence, one_of(DRAFT), [True])
        made.extend(plan, 512)
        return draft.num_looks

    assert asked() == 1
    assert asked(Fixed(GuessedTokens((10,) * 12, (("lookup", (2, 0)),) * 12))) == 0


def test_where_nothing_pays_few_steps_ask() -> None:
    class Counting(FixedTimes):
        num_asked = 0

        def seconds(self, num_tokens: int) -> float:
            self.num_asked += 1
            return super().seconds(num_tokens)

    made = make(0.0, 1.0)
    made.times = times = Counting(0.0, 1.0)  # type: ignore[assignment]
    plan, num_asking = plan_for(made, 64), 0
    for _ in range(800):
        before = times.num_asked
        made.extend(plan, 512)
        num_asking += times.num_asked > before
        confirm(made, plan, num_right=0)
    assert num_asking <= 800 / (1 + module.RESTS) + 1


def test_a_debt_ends_though_each_step_asks_whether_to_look() -> None:
    class Ticking(Clock):
        def __call__(self) -> float:
            self.now += 10e-6
            return self.now

    nothing = Fixed(NO_GUESS)
    made = Speculation([nothing], BlockPool(100), EngineStats(), block_size=4, clock=Ticking())
    plan = plan_for(made, 4)

    def run(num_steps: int) -> int:
        before = nothing.num_looks
        for _ in range(num_steps):  # each pays 5 microseconds
            made.extend(plan, 512)
            made.took(plan, 1e-3, [one.sequence for one in plan.entries], [[NextToken(0)]] * 4)
        return nothing.num_looks - before

    assert run(10)
    (account,) = made._accounts
    account.balance = -1e-3
    assert not run(190)
    assert run(300)


def test_savings_pay_for_looking_at_all_sequences() -> None:
    clock, chance = Clock(), random.Random(1)
    made = Speculation([], BlockPool(100), EngineStats(), block_size=4, clock=clock)
    made.use([Dear(clock, 20e-6, 1.0, chance)])
    plan = plan_for(made, 64)
    counts = []
    for _ in range(300):
        extended = made.extend(plan, 512, others_wait=True)
        rows = [chosen(one.guesses) for one in extended.entries]
        seconds = 12e-3 + 60e-6 * extended.num_tokens
        made.took(extended, seconds, [one.sequence for one in extended.entries], rows)
        counts.append(extended.num_guesses)
    first = next(number for number in counts if number)
    assert first <= module.TRIED, "a try, as the cost of a token more is not known"
    assert sum(counts[-100:]) > 80 * 100, "of the 100 that there are Blocks for"


@pytest.mark.parametrize("load", [0.0, 0.1], ids="load {}".format)
def test_what_ends_early_saves_nothing_where_nobody_takes_its_place(load: float) -> None:
    """Half of a batch repeats itself; the other half lets the batch end no earlier."""
    clock, chance = Clock(), random.Random(1)
    made = Speculation([], BlockPool(100), EngineStats(), block_size=4, clock=clock)
    made.use([Dear(clock, 20e-6, 0.8, chance)])
    plan = plan_for(made, 64)
    for _ in range(50):  # as earlier requests have shown
        made.rates.add(make_sequence(64, PROMPT, 40), one_of(("lookup", (2, 0))), [True])
        for num_tokens in (16, 64, 66, 80):
            made.times.add(num_tokens, 6e-3 + 160e-6 * num_tokens)
    taken = without = 0.0
    for _ in range(6):
        lengths = dict.fromkeys(plan.entries, 96)
        for _ in range(96):
            extended = made.extend(StepPlan(tuple(lengths)), 512)
            rows = []
            for (entry, left), running in zip(list(lengths.items()), extended.entries, strict=True):
                is_right = entry.sequence.arrival % 2 == 0 and chance.random() < 0.95
                rows.append(chosen(running.guesses, None if is_right else 0))
                lengths[entry] = left - len(rows[-1])
            seconds = 6e-3 + 160e-6 * extended.num_tokens
            longer = 1 + (chance.expovariate(1 / load) if load else 0)
            made.took(extended, longer * seconds, [one.sequence for one in extended.entries], rows)
            lengths = {entry: left for entry, left in lengths.items() if left > 0}
            taken += seconds
            without += 6e-3 + 160e-6 * 64
    assert taken + clock.now <= 1.01 * without


def test_a_tail_whose_requests_are_equally_lucky_guesses_on() -> None:
    made = make(1.0, 0.05)
    plan = plan_for(made, 4)
    counts = []
    for _ in range(200):
        extended = made.extend(plan, 512)
        confirm(made, extended, num_right=2)
        counts.append(extended.num_guesses)
    assert counts[-65:].count(0) <= 3


def test_likelier_tokens_are_verified_first_and_each_is_counted_for_its_source() -> None:
    made = make(1.0, 0.1)
    sure, doubtful = ("grammar", None), ("lookup", (2, 0))
    kinds = (sure, sure, doubtful, sure)
    plan = plan_for(made, 2)
    first = plan.entries[0].sequence
    for _ in range(30):
        made.rates.add(first, one_of(sure), [True])
        made.rates.add(first, one_of(doubtful), [False])
    made.use([Fixed(GuessedTokens((10, 11, 12, 13), kinds))])
    extended = made.extend(plan, 512)
    assert [one.guesses for one in extended.entries] == [(10, 11)] * 2, "as far as they are likely"
    confirm(made, extended, num_right=1)
    stats = made._stats
    assert (stats.grammar_guessed_tokens, stats.grammar_right_tokens) == (4, 2)
    assert stats.lookup_guessed_tokens == 0


def test_the_draft_guesses_where_the_lookup_is_less_likely_right() -> None:
    made = make(1.0, 0.1)
    made.use(
        [
            Fixed(GuessedTokens((10, 11), (("lookup", (2, 0)),) * 2)),
            Fixed(GuessedTokens((20, 21), (DRAFT,) * 2), seconds_per_pass=0.0),
        ]
    )
    plan = plan_for(made)
    sequence = plan.entries[0].sequence
    for _ in range(9):
        made.rates.add(sequence, one_of(DRAFT), [True])
    assert made.extend(plan, 512).entries[0].guesses[0] == 20
    for _ in range(40):
        made.rates.add(sequence, one_of(("lookup", (2, 0))), [True])
    assert made.extend(plan, 512).entries[0].guesses[0] == 10


def test_a_pause_after_memory_ran_out() -> None:
    made = make(1.0, 0.0)
    made.pause()
    counts = [made.extend(plan_for(make(1, 1)), 512).num_guesses for _ in range(module.PAUSE_STEPS + 1)]
    assert [bool(one) for one in counts] == [False] * module.PAUSE_STEPS + [True]


def test_times_are_medians_on_straight_lines() -> None:
    times = StepTimes()
    assert times.seconds(1) is None
    for seconds in (1.0, 1.0, 90.0):
        times.add(1, seconds)
    assert times.seconds(1) == 1.0
    assert times.seconds(10) == 2.0, "nine tokens more than the one, which costs as eight and itself"
    times.add(5, 1.4)
    assert times.seconds(3) == pytest.approx(1.2)
    times.add(3, 50.0)
    assert times.seconds(3) == 1.4, "fewer tokens never take more time, so something else did"


def test_times_onward_are_those_of_each_size() -> None:
    times = StepTimes()
    for size, seconds in ((3, 1.0), (5, 1.5), (8, 1.6), (37, 4.0), (38, 4.2), (39, 4.4), (70, 9.0)):
        times.add(size, seconds)
    for first in (1, 3, 4, 8, 36, 69, 70, 200):
        onward = list(islice(times.onward(first), 100))
        assert onward == pytest.approx([times.seconds(size) for size in range(first, first + 100)])


def test_a_step_that_took_no_time_is_no_fault() -> None:
    made = make(0.0, 0.0)
    made.times = StepTimes()
    for size in (1, 2, 8):
        made.times.add(size, 0.0)
    assert made._best(1, [0.9, 0.8]) == (2, 2.7, 2.7)
