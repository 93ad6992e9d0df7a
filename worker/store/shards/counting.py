"""Counts the Results that saves have stored without their batch's lock, and settles the batch.

A save that finds the lock taken commits without it. The transaction with the lock may have looked for
uncounted Results before that commit. So both call `follow` after their commits: the later one finds the
Results uncounted, and the lock free or taken by a third save, which calls `follow` in its turn. If a process
dies before its `follow`, the dispatcher's sweep counts.
"""

from contextlib import suppress

from sqlalchemy.orm import Session

from worker.store.batches import batches, stop_rules
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests import tally
from worker.store.shards import rates

# After so many rounds there are enough others to count.
MAX_ROUNDS = 8


def follow(store: Store, batch_id: str) -> None:
    """Count Results of a batch until none is left or another transaction has its lock.

    Raises no error when Postgres is away, as the save before it is done: the sweep counts then.
    """
    with suppress(*DATABASE_AWAY):
        for _ in range(MAX_ROUNDS):
            with store.look() as session:
                if not tally.is_behind(session, batch_id):
                    return
            with store.transaction() as session:
                if not count(session, batch_id):
                    return


def count(session: Session, batch_id: str) -> bool:
    """Count Results of a batch, apply its stop rules and settle it; return False if its lock is taken."""
    batch = batches.lock(session, batch_id, skip_locked=True)
    if batch is None:
        return False
    tally.catch_up(session, batch)
    stop_rules.apply(session, batch)
    batches.settle(session, batch)
    rates.measure(session, batch)
    return True
