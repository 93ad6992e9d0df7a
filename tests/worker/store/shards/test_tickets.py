from datetime import timedelta

from tests.fixtures.batches import held, run_to_the_end, submit
from worker.store.database.session import Store
from worker.store.shards import tickets
from worker.store.webhooks import delivery_tickets

SOON = timedelta(seconds=60)
AT_ONCE = timedelta(0)


def issue(store: Store, window: int = 100, reissue_after: timedelta = SOON) -> list[str]:
    with store.transaction() as session:
        issued = tickets.issue_shards(session, window=window, reissue_after=reissue_after)
    return [ticket.task_id for ticket in issued]


def test_the_window_bounds_what_is_outstanding(store: Store) -> None:
    submit(store, num_requests=10, shard_size=1)
    assert issue(store, window=4) == ["1.1", "2.1", "3.1", "4.1"]
    assert issue(store, window=4) == []
    held(store, 1)
    held(store, 2)
    assert issue(store, window=4) == ["5.1", "6.1"]


def test_a_lost_ticket_is_issued_again_with_the_next_number(store: Store) -> None:
    submit(store, num_requests=2, shard_size=1)
    assert issue(store) == ["1.1", "2.1"]
    held(store, 1)
    assert issue(store, reissue_after=AT_ONCE) == ["2.2"]


def test_priority_decides_late(store: Store) -> None:
    submit(store, num_requests=2, shard_size=1)
    submit(store, num_requests=1, shard_size=1, priority=5)
    assert issue(store, window=1) == ["3.1"]
    assert issue(store, window=3) == ["1.1", "2.1"]


def test_an_event_is_ticketed_once_it_is_due(store: Store) -> None:
    submit(store, num_requests=1, callback_url="https://example.com/hook")

    def due() -> int:
        with store.transaction() as session:
            return len(delivery_tickets.issue(session, window=10, reissue_after=SOON, most_at_once=2))

    assert due() == 0
    run_to_the_end(store, held(store, 1))
    assert due() == 1
    assert due() == 0


def test_a_window_that_is_full_holds_back_nothing_of_higher_priority(store: Store) -> None:
    submit(store, num_requests=10, shard_size=1)
    assert len(issue(store, window=4)) == 4
    submit(store, num_requests=6, shard_size=1, priority=5)
    assert issue(store, window=4) == ["11.1", "12.1", "13.1", "14.1"]
    assert issue(store, window=4) == []


def test_a_window_that_is_full_holds_back_no_other_batch(store: Store) -> None:
    submit(store, num_requests=10, shard_size=1)
    assert len(issue(store, window=4)) == 4
    submit(store, num_requests=2, shard_size=1)
    assert issue(store, window=4) == ["11.1", "12.1"]
