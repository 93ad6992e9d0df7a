import threading

import pytest

from tests.fixtures.deployment import eventually
from worker.runs.solo import Solo

WAIT_SECONDS = 60.0


class Visitor:
    """Goes in from a thread of its own, and stays until it is let go."""

    def __init__(self, solo: Solo, *, alone: bool) -> None:
        self.is_in = threading.Event()
        self.let_go = threading.Event()
        self.gives_up = threading.Event()
        self.came_in: bool | None = None
        self._thread = threading.Thread(target=self._visit, args=(solo, alone), daemon=True)
        self._thread.start()

    def _visit(self, solo: Solo, alone: bool) -> None:
        with solo.enter(alone=alone, give_up=self.gives_up.is_set) as is_in:
            self.came_in = is_in
            if is_in:
                self.is_in.set()
                self.let_go.wait(WAIT_SECONDS)

    def leave(self) -> None:
        self.let_go.set()
        self._thread.join(WAIT_SECONDS)


def test_many_are_in_together() -> None:
    solo = Solo()
    visitors = [Visitor(solo, alone=False) for _ in range(3)]
    for one in visitors:
        assert one.is_in.wait(WAIT_SECONDS)
    for one in visitors:
        one.leave()


def test_one_alone_waits_for_the_others_and_goes_before_those_that_come_later() -> None:
    solo = Solo()
    first = Visitor(solo, alone=False)
    assert first.is_in.wait(WAIT_SECONDS)
    alone = Visitor(solo, alone=True)
    eventually(lambda: solo._num_wanting == 1)
    later, other_alone = Visitor(solo, alone=False), Visitor(solo, alone=True)
    assert not alone.is_in.wait(0.05)
    first.leave()
    eventually(lambda: alone.is_in.is_set() or other_alone.is_in.is_set())
    one, two = (alone, other_alone) if alone.is_in.is_set() else (other_alone, alone)
    assert not two.is_in.is_set()
    assert not later.is_in.is_set()
    one.leave()
    assert two.is_in.wait(WAIT_SECONDS)
    assert not later.is_in.is_set()
    two.leave()
    assert later.is_in.wait(WAIT_SECONDS)
    later.leave()


def test_who_gives_up_holds_nobody_back() -> None:
    solo = Solo()
    first = Visitor(solo, alone=False)
    assert first.is_in.wait(WAIT_SECONDS)
    alone = Visitor(solo, alone=True)
    eventually(lambda: solo._num_wanting == 1)
    alone.gives_up.set()
    alone._thread.join(WAIT_SECONDS)
    assert alone.came_in is False
    second = Visitor(solo, alone=False)
    assert second.is_in.wait(WAIT_SECONDS)
    for one in (first, second):
        one.leave()


def test_an_error_while_one_alone_waits_keeps_nobody_out() -> None:
    solo = Solo()

    def fail() -> bool:
        raise ConnectionError("the database is away")

    with pytest.raises(ConnectionError), solo.enter(alone=True, give_up=fail):
        pass
    together = Visitor(solo, alone=False)
    assert together.is_in.wait(WAIT_SECONDS)
    together.leave()


def test_nobody_waits_for_the_question_whether_one_alone_gives_up() -> None:
    solo = Solo()
    together = Visitor(solo, alone=False)
    assert together.is_in.wait(WAIT_SECONDS)
    is_asked, answer = threading.Event(), threading.Event()

    def ask() -> bool:
        is_asked.set()
        return answer.wait(2 * WAIT_SECONDS)

    def visit() -> None:
        with solo.enter(alone=True, give_up=ask):
            pass

    alone = threading.Thread(target=visit, daemon=True)
    alone.start()
    assert is_asked.wait(WAIT_SECONDS)
    together.leave()
    assert not together._thread.is_alive()
    answer.set()
    alone.join(WAIT_SECONDS)
