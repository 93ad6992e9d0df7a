"""How many workers are wanted, by example and by property."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from worker.scaling.policy import DueWork, ScalingTimes, Wanted, WorkerGroup, decide

HOUR = 3600.0
TIMES = ScalingTimes(cold_start=300.0, every=60.0, hold=60.0)
NOBODY = WorkerGroup(most=16)


def test_without_work_nobody_is_wanted() -> None:
    assert decide([], TIMES, NOBODY) == Wanted(0)
    idle = WorkerGroup(idle_seconds=(59.0, 61.0), ready_seconds=(10.0,), most=16)
    assert decide([], TIMES, idle) == Wanted(1)  # the one that has just lost its work
    assert decide([], TIMES, idle, least=2) == Wanted(2)


def test_a_worker_starts_as_late_as_the_deadline_allows() -> None:
    hour_of_work = DueWork(due_seconds=HOUR + 300 + 59, seconds=HOUR)
    assert decide([hour_of_work], TIMES, NOBODY) == Wanted(1)
    assert decide([replace(hour_of_work, due_seconds=HOUR + 300 + 61)], TIMES, NOBODY) == Wanted(0)


def test_a_deadline_that_takes_several_workers_gets_them_at_once() -> None:
    assert decide([DueWork(due_seconds=300 + 600, seconds=HOUR)], TIMES, NOBODY) == Wanted(6)


def test_the_tail_of_a_batch_is_no_time_to_share_out_work() -> None:
    job = DueWork(due_seconds=300 + 600, seconds=HOUR, tail_seconds=300)
    assert decide([job], TIMES, NOBODY) == Wanted(12)


def test_what_runs_and_starts_is_taken_into_account() -> None:
    job = DueWork(due_seconds=HOUR, seconds=2 * HOUR - 600)
    assert decide([job], TIMES, WorkerGroup(num_busy=1, ready_seconds=(600.0,), most=16)) == Wanted(2)
    late = replace(job, seconds=2 * HOUR - 310)
    assert decide([late], TIMES, WorkerGroup(num_busy=1, most=16)) == Wanted(2)


def test_the_earliest_of_several_deadlines_decides() -> None:
    first, second = DueWork(due_seconds=900, seconds=1200), DueWork(due_seconds=24 * HOUR, seconds=HOUR)
    assert decide([second, first], TIMES, NOBODY) == Wanted(2)


def test_a_job_that_comes_too_late_for_a_new_worker_asks_for_none() -> None:
    assert decide([DueWork(due_seconds=299, seconds=10)], TIMES, NOBODY) == Wanted(0)


def test_idle_workers_end_only_where_the_others_suffice() -> None:
    fleet = WorkerGroup(num_busy=1, idle_seconds=(90.0, 90.0), most=16)
    assert decide([DueWork(due_seconds=HOUR, seconds=600)], TIMES, fleet) == Wanted(1)
    assert decide([DueWork(due_seconds=350, seconds=1000)], TIMES, fleet) == Wanted(3)


def test_slack_goes_to_spot_and_what_is_due_soon_on_demand() -> None:
    spot = WorkerGroup(most=16)
    # Done one start and one decision before the deadline.
    slack = DueWork(due_seconds=HOUR + 300 + 360 + 59, seconds=HOUR)
    assert decide([slack], TIMES, NOBODY, spot) == Wanted(0, 1)
    assert decide([DueWork(due_seconds=700, seconds=800)], TIMES, NOBODY, spot) == Wanted(2, 0)


def test_what_spot_has_no_room_for_is_wanted_on_demand() -> None:
    job = DueWork(due_seconds=300 + 360 + 600, seconds=3800)  # the early deadline leaves 600 s
    assert decide([job], TIMES, NOBODY, WorkerGroup(most=16)) == Wanted(0, 7)
    # Up to the deadline itself two spot workers have 960 s each. The rest takes two more.
    assert decide([job], TIMES, NOBODY, WorkerGroup(most=2)) == Wanted(2, 2)


jobs = st.lists(
    st.builds(
        DueWork,
        due_seconds=st.floats(0, 1e5),
        seconds=st.floats(1, 1e5),
        tail_seconds=st.floats(0, 300),
    ),
    max_size=8,
)
seconds = st.lists(st.floats(0, 300), max_size=4).map(tuple)
fleets = st.builds(
    WorkerGroup,
    num_busy=st.integers(0, 5),
    idle_seconds=seconds,
    ready_seconds=seconds,
    most=st.integers(0, 40),
)


@given(jobs, fleets, st.none() | fleets, st.integers(0, 3))
def test_busy_workers_never_end(
    work: list[DueWork], fleet: WorkerGroup, spot: WorkerGroup | None, least: int
) -> None:
    wanted = decide(work, TIMES, fleet, spot, least=least)
    assert fleet.num_busy <= wanted.on_demand <= max(fleet.num_busy, fleet.most)
    if spot is not None:
        assert spot.num_busy <= wanted.spot <= max(spot.num_busy, spot.most)


@given(fleets, fleets)
def test_an_empty_backlog_scales_to_zero(fleet: WorkerGroup, spot: WorkerGroup) -> None:
    tired = [replace(one, num_busy=0, idle_seconds=(TIMES.hold,) * 3) for one in (fleet, spot)]
    assert decide([], TIMES, tired[0], tired[1]) == Wanted(0, 0)


def meets(work: list[DueWork], fleet: WorkerGroup, new: int, after: float) -> bool:
    """Whether every job ends in time if `new` workers start after so many seconds."""
    starts = [*fleet.ready, *[after + TIMES.cold_start] * new]
    total = 0.0
    for job in sorted(work, key=lambda job: job.limit):
        total += job.seconds
        if total > sum(max(0.0, job.limit - start) for start in starts) + 1e-3:
            return False
    return True


@given(jobs, st.builds(replace, fleets, most=st.just(40), idle_seconds=st.just(())))
def test_what_the_deadlines_need_is_always_wanted(work: list[DueWork], fleet: WorkerGroup) -> None:
    """What could be met with new workers now still can be: by those wanted now, or by starting them later."""
    room = 40 - fleet.num_workers
    if not meets(work, fleet, room, 0.0):
        return
    new = decide(work, TIMES, fleet).on_demand - fleet.num_workers
    started = replace(fleet, ready_seconds=(*fleet.ready_seconds, *[TIMES.cold_start] * new))
    assert new >= 0 or not work
    assert meets(work, started, room - max(0, new), TIMES.every)
