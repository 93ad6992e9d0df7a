"""The order of length-aware admission, and what it costs; every Sequence here runs to max_tokens."""

import random
import time
from collections.abc import Sequence as Items
from itertools import pairwise

import pytest

from tests.fixtures.scheduling import make_scheduler, make_sequence
from worker.engine.scheduling.admission.length_aware import AGING_STEPS, PATIENCE_STEPS
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.readout import PooledReadout
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

END = 9


def step(scheduler: Scheduler, ends: dict[int, int] | None = None) -> list[int]:
    """Run one Step and return the arrivals in it; `ends`: after how many tokens an output ends by itself."""
    plan = scheduler.schedule()
    scheduler.advance(plan)
    for entry in plan.entries:
        sequence = entry.sequence
        if entry.is_sampled:
            sequence.token_ids.append(5)
            if sequence.num_output_tokens == (ends or {}).get(sequence.arrival):
                scheduler.finish(sequence, FinishReason.STOP)
            elif sequence.num_output_tokens >= sequence.params.max_tokens:
                scheduler.finish(sequence, FinishReason.LENGTH)
    return [entry.sequence.arrival for entry in plan.entries]


def start_order(scheduler: Scheduler, ends: dict[int, int] | None = None) -> list[int]:
    """Run to the end and return arrivals in the order they first ran."""
    order: dict[int, None] = {}
    while scheduler.num_running or scheduler.num_waiting:
        order |= dict.fromkeys(step(scheduler, ends))
    return list(order)


def length_aware(num_blocks: int = 64, rows: int = 1, **options: object) -> Scheduler:
    return make_scheduler(num_blocks, 4, rows, 32, policy="length-aware", **options)  # type: ignore[arg-type]


def add(scheduler: Scheduler, sequences: Items[Sequence]) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


def test_the_longest_goes_first() -> None:
    scheduler = length_aware()
    add(scheduler, [make_sequence(i, [i], max_tokens) for i, max_tokens in enumerate([3, 40, 1, 90, 12])])
    assert start_order(scheduler) == [3, 1, 4, 0, 2]


def test_readings_go_ahead() -> None:
    scheduler = length_aware()
    sequences = [make_sequence(i, [i], max_tokens) for i, max_tokens in enumerate([3, 40])]
    for arrival in (2, 3):
        reading = make_sequence(arrival, [arrival], 1)
        reading.is_generating = False
        reading.readout = PooledReadout(0, 1)
        sequences.append(reading)
    add(scheduler, sequences)
    order: list[int] = []
    while scheduler.num_running or scheduler.num_waiting:
        order += step(scheduler)
        for sequence in scheduler.running:
            if not sequence.is_generating:
                scheduler.finish(sequence)
    assert list(dict.fromkeys(order)) == [2, 3, 1, 0]


def test_prefixes_stay_together_at_every_depth() -> None:
    scheduler = length_aware()
    prompts = [[a] * 8 + [b] * 4 + [c] for c in range(3) for b in range(2) for a in range(3)]
    add(scheduler, [make_sequence(i, prompt, 3) for i, prompt in enumerate(prompts)])
    order = start_order(scheduler)
    runs = [tuple(prompts[i][:8]) for i in order]
    assert sum(one != two for one, two in pairwise(runs)) == 2, "three runs of one head"
    runs = [tuple(prompts[i][:12]) for i in order]
    assert sum(one != two for one, two in pairwise(runs)) == 5, "six of one longer head"


def test_prefixes_together_save_what_first_in_first_out_computes_again() -> None:
    cached = {}
    for policy in ("fifo", "length-aware"):
        scheduler = make_scheduler(12, 4, 2, 32, policy=policy)
        heads = [[head] * 16 for head in range(8)]
        add(scheduler, [make_sequence(i, [*heads[i % 8], i], 3) for i in range(64)])
        start_order(scheduler)
        cached[policy] = scheduler.stats.cached_tokens
        assert scheduler.stats.queried_tokens == 64 * 17
    assert cached["length-aware"] == 56 * 16
    assert cached["fifo"] < cached["length-aware"] / 4


def test_nobody_is_passed_by_what_arrives_much_later() -> None:
    scheduler = length_aware(rows=1)
    add(scheduler, [make_sequence(0, [0], 200), make_sequence(1, [1], 4)])
    ran: list[int] = []
    for number in range(AGING_STEPS * 8):
        if number % 20 == 0:
            scheduler.add(make_sequence(2 + number, [2], 100))
        ran += step(scheduler)
        if ran[-1] == 1:
            break
    assert list(dict.fromkeys(ran)) == [0, 2, 22, 42, 1], "longer ones pass that came soon after, no others"


def test_the_longest_goes_first_of_what_arrives_a_few_steps_apart() -> None:
    scheduler = length_aware(rows=1)
    for number in range(AGING_STEPS - 10):
        add(scheduler, [make_sequence(9 + number, [0], 1)])
        step(scheduler)
    add(scheduler, [make_sequence(0, [0], 30), make_sequence(1, [1], 4)])
    for _ in range(20):
        step(scheduler)
    add(scheduler, [make_sequence(2, [2], 100)])
    ran = [index for _ in range(20) for index in step(scheduler)]
    assert list(dict.fromkeys(ran)) == [0, 2]


def test_what_a_job_has_taught_reorders_those_that_wait() -> None:
    scheduler = length_aware(rows=1)
    stop = frozenset({END})
    short = [make_sequence(i, [i], 100, job="short", stop_token_ids=stop) for i in range(8)]
    add(scheduler, [*short, make_sequence(100, [3], 20)])
    order = start_order(scheduler, dict.fromkeys(range(8), 2))
    assert order.index(100) == 1, "as soon as the job is known to be shorter"


def test_while_many_run_nobody_starts_whom_memory_will_not_hold() -> None:
    """300 prompts of 4 Blocks, outputs of 9 more: as many as fit at first would all be preempted."""
    stats = {}
    for policy in ("fifo", "length-aware"):
        scheduler = make_scheduler(900, 4, 128, 256, policy=policy)
        add(scheduler, [make_sequence(i, [i] * 16, 36 + i % 8) for i in range(300)])
        start_order(scheduler)
        stats[policy] = scheduler.stats
    assert stats["fifo"].preemptions > 50
    assert stats["length-aware"].preemptions < 5
    assert stats["length-aware"].recomputed_tokens < stats["fifo"].recomputed_tokens / 10


def test_shorter_ones_pass_while_the_first_finds_no_room_but_not_for_ever() -> None:
    scheduler = length_aware(num_blocks=30, rows=6)
    # All 30 Blocks, 27 of them at once; there are never so many free while short ones keep coming.
    add(scheduler, [make_sequence(0, [0] * 40, 50), make_sequence(1, [1] * 108, 12)])
    ran: set[int] = set()
    for number in range(1, 1000):
        add(scheduler, [make_sequence(10 * number + i, [2, number, i], 4) for i in range(4)])
        ran |= set(step(scheduler))
        if 1 in ran:
            break
    assert 1 in ran, "starved"
    assert len(ran) > 40, "there was room for short ones"
    assert number <= PATIENCE_STEPS + 50, "after a while nobody passes, and what runs ends"


def test_a_preempted_sequence_comes_back_first_and_finds_its_blocks() -> None:
    scheduler = length_aware(num_blocks=26, rows=2)
    stop = frozenset({END})
    # Nothing is known of the job, so both start; they outgrow the pool together.
    pair = [make_sequence(i, [i] * 8, 60, job="unknown", stop_token_ids=stop) for i in range(2)]
    add(scheduler, pair)
    for _ in range(60):
        step(scheduler)
        if scheduler.stats.preemptions:
            break
    victim = pair[1]
    assert victim.state is SequenceState.WAITING
    assert victim.max_computed_tokens >= 48
    scheduler.add(make_sequence(2, [7] * 4, 60))
    scheduler.finish(pair[0], FinishReason.STOP)
    assert step(scheduler)[0] == 1
    assert scheduler.stats.resumed_tokens >= victim.max_computed_tokens - 8, (
        "but for what was taken meanwhile"
    )
    assert scheduler.stats.recomputed_tokens <= 8


def test_the_last_to_end_does_not_wait_for_room_it_needs_late() -> None:
    """Two long Sequences that do not fit whole: with nothing else to do, both run as far as they get."""
    scheduler = length_aware(num_blocks=40, rows=4)
    add(scheduler, [make_sequence(i, [i] * 4, 120) for i in range(2)])
    assert sorted(step(scheduler)) == [0, 1]
    steps = 1
    while scheduler.num_running or scheduler.num_waiting:
        step(scheduler)
        steps += 1
    assert steps < 200, "not one after the other"
    assert scheduler.stats.preemptions == 1


@pytest.mark.slow
def test_a_step_costs_the_same_however_many_wait() -> None:
    """A Step with 100,000 waiting takes about as long as with 1,000; 0.1 to 0.3 ms on one slow core."""
    seconds = {}
    for policy in ("fifo", "length-aware"):
        for num_waiting in (1_000, 100_000):
            numbers = random.Random(0)
            scheduler = make_scheduler(256, 16, 32, 512, policy=policy)
            for i in range(num_waiting):
                prompt = [numbers.randrange(100) for _ in range(20)]
                scheduler.add(make_sequence(i, prompt, numbers.choice([4, 16, 64]), job=str(i % 50)))
            step(scheduler)
            times = []
            for _ in range(100):
                started = time.perf_counter()
                plan = scheduler.schedule()
                scheduler.advance(plan)
                times.append(time.perf_counter() - started)
                for entry in plan.entries:
                    sequence = entry.sequence
                    sequence.token_ids.append(5)
                    if sequence.num_output_tokens >= sequence.params.max_tokens:
                        scheduler.finish(sequence, FinishReason.LENGTH)
            seconds[policy, num_waiting] = sorted(times)[len(times) // 2]
        # A scan of those that wait would take a hundred times as long.
        assert seconds[policy, 100_000] < 10 * seconds[policy, 1_000]
