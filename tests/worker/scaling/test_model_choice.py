"""Which of several models a worker holds, by example and by property."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from worker.scaling.model_choice import WORTH, ModelWork, choose

SWITCH = 30.0
LONG = WORTH * SWITCH
SOON, LATE = ModelWork(60.0), ModelWork(3600.0)


def choose_after(work: dict[str, ModelWork], held: str | None, held_seconds: float) -> str | None:
    return choose(work, held, held_seconds=held_seconds, switch_seconds=SWITCH)


def test_it_stays_until_another_has_work_and_its_own_has_none() -> None:
    assert choose_after({}, None, 0.0) is None
    assert choose_after({}, "a", 1e9) == "a"
    assert choose_after({"a": LATE}, "a", 1e9) == "a"
    assert choose_after({"b": LATE}, "a", 0.0) == "b"
    assert choose_after({"b": LATE, "c": SOON}, "a", 0.0) == "c"
    assert choose_after({"b": LATE, "c": SOON}, None, 0.0) == "c"


def test_while_it_has_work_it_leaves_for_what_is_due_earlier_and_not_too_often() -> None:
    assert choose_after({"a": LATE, "b": SOON}, "a", LONG - 1) == "a"
    assert choose_after({"a": LATE, "b": SOON}, "a", LONG) == "b"
    assert choose_after({"a": SOON, "b": LATE}, "a", 1e9) == "a"


def test_a_client_waits_for_no_more_than_one_switch_of_another_models_time() -> None:
    client = ModelWork(-2.0, has_clients=True)
    assert choose_after({"a": LATE, "b": client}, "a", SWITCH - 1) == "a"
    assert choose_after({"a": LATE, "b": client}, "a", SWITCH) == "b"
    # Clients of the model that is held do not keep late work of another waiting for ever.
    assert choose_after({"a": client, "b": ModelWork(-60.0)}, "a", LONG) == "b"


@dataclass
class Arrived:
    model: str
    due: float
    has_clients: bool
    seconds: float = 200.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 5000), st.booleans()), max_size=8))
def test_all_work_gets_its_turn(arrivals: list[tuple[str, float, bool]]) -> None:
    """Serve work in fluid turns, each of 200 seconds: no model waits for ever, few switches are made."""
    left = [Arrived(*arrival) for arrival in arrivals]
    now, since = 0.0, 0.0
    held: str | None = None
    while left:
        work: dict[str, ModelWork] = {}
        for one in sorted(left, key=lambda one: -one.due):
            work[one.model] = ModelWork(one.due - now, has_clients=one.has_clients)
        chosen = choose(work, held, held_seconds=now - since, switch_seconds=SWITCH)
        assert chosen is not None
        if chosen != held:
            held = chosen
            now = since = now + SWITCH
            continue
        now += 10.0
        mine = min((one for one in left if one.model == held), key=lambda one: one.due)
        mine.seconds -= 10.0
        left = [one for one in left if one.seconds > 0]
        assert now < 200.0 * len(arrivals) + SWITCH * (2 * len(arrivals) + 3), "it goes on for ever"
