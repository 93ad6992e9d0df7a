"""Save the shards that one worker runs together, in one transaction for each batch.

Each runner has its own thread, and the engine's thread has to wait while a transaction runs Python. So one
of the runners that want to save at about the same time saves for all of them.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby

from worker.store.database.session import Store
from worker.store.shards import counting, shards
from worker.store.shards.shards import AfterSave, Progress

# How long the first save waits for others, if any can come.
GATHER_SECONDS = 0.02


@dataclass(slots=True)
class _Waiting:
    progress: Progress
    lease: timedelta | None
    is_done: threading.Event = field(default_factory=threading.Event)
    saved: AfterSave = AfterSave.LOST
    error: Exception | None = None


class ShardSaver:
    """Takes saves from many threads and commits those that arrive together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._are_all = False  # those who wait: no other save can come

    def save(self, progress: Progress, *, lease: timedelta | None, most: int) -> AfterSave:
        """Save a shard, together with other waiting saves; raise the error of its transaction, if any.

        `most` is the number of shards that run now: no more saves can come together.
        """
        own = _Waiting(progress, lease)
        with self._lock:
            self._waiting.append(own)
            is_first = len(self._waiting) == 1
            self._are_all = len(self._waiting) >= most
            if self._are_all:
                self._lock.notify()
        if is_first:
            with self._lock:
                self._lock.wait_for(lambda: self._are_all, GATHER_SECONDS)
                group, self._waiting = self._waiting, []
            self._commit(group)
        own.is_done.wait()
        if own.error is not None:
            raise own.error
        return own.saved

    def _commit(self, group: Sequence[_Waiting]) -> None:
        def order(one: _Waiting) -> tuple[str, bool, int]:
            return one.progress.held.batch_id, one.lease is None, one.progress.held.shard_id

        for _, same_batch in groupby(sorted(group, key=order), key=lambda one: order(one)[:2]):
            together = list(same_batch)
            try:
                with self._store.transaction() as session:
                    progress = [one.progress for one in together]
                    saved = shards.save(session, progress, lease=together[0].lease)
            except Exception as error:  # noqa: BLE001 - each waiting thread raises it itself
                for one in together:
                    one.error = error
            else:
                for one, verdict in zip(together, saved, strict=True):
                    one.saved = verdict
            for one in together:
                one.is_done.set()
            if together[0].error is None:
                counting.follow(self._store, together[0].progress.held.batch_id)
