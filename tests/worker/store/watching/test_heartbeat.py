from tests.fixtures.deployment import eventually
from worker.contract.processes import BUILD, FILES
from worker.store.database.session import Store
from worker.store.watching import workers
from worker.store.watching.heartbeat import heartbeat
from worker.store.watching.workers import LiveProcess


def live(store: Store) -> list[LiveProcess]:
    with store.transaction() as session:
        return workers.live(session)


def test_a_process_counts_as_alive_until_it_ends(store: Store) -> None:
    with heartbeat(store, FILES), heartbeat(store, FILES):
        first, second = eventually(lambda: found if len(found := live(store)) == 2 else None)
        assert first.name != second.name, "each process has its own row"
        assert (first.queue, first.slots) == (FILES, 0)
        assert first.info[BUILD].keys() == {"version", "python"}
    assert live(store) == []
