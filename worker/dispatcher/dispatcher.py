"""Sweep: return shards and deliveries of dead workers, end and start batches, issue tickets for due rows.

Any number of dispatchers may run: each step locks the rows it changes and skips rows that another has locked.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from kombu.exceptions import OperationalError as BrokerError
from redis import RedisError

from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE, Ticket, gpu_queue
from worker.dispatcher.lost_workers import LostWorkers
from worker.queue.broker import Broker
from worker.queue.publish import publish
from worker.store.batches import batches, idempotency, responses, starts
from worker.store.cache import response_cache
from worker.store.counts import batch_counts, meters, usage
from worker.store.database.session import Store
from worker.store.experiments import experiments
from worker.store.requests import tally
from worker.store.shards import control, counting, tickets, timeouts
from worker.store.sweeping import due_work
from worker.store.sweeping.due_work import Due
from worker.store.watching import retention, workers
from worker.store.webhooks import deliveries, delivery_tickets, receivers

logger = logging.getLogger(__name__)

# Tickets in Redis per task slot: enough that no slot waits, few enough that FLUSHALL costs little.
WINDOW_PER_SLOT = 2
MIN_WINDOW = 8
# An unclaimed ticket counts as lost after the first time if its queue is empty, after the second always.
REISSUE_WHEN_EMPTY = timedelta(seconds=2)
REISSUE_ALWAYS = timedelta(seconds=60)
SWEEP_LIMIT = 100
# Requests that one sweep drops: enough to keep up with new ones, few enough to finish quickly.
DROP_LIMIT = 2000


@dataclass(slots=True)
class Dispatcher:
    """Keeps work moving. `publish` is a parameter so that a test can observe it."""

    store: Store
    broker: Broker
    max_attempts: int
    publish: Callable[[Ticket], None] = publish
    callbacks_per_receiver: int = 2
    results_kept_for: timedelta | None = None  # None: for ever
    lost_workers: LostWorkers = field(init=False)

    def __post_init__(self) -> None:
        self.lost_workers = LostWorkers(self.store, self.max_attempts)

    def sweep(self) -> None:
        """Run one sweep over everything that is due."""
        self.lost_workers.sweep(limit=SWEEP_LIMIT)
        with self.store.look() as session:
            due = due_work.find(session)
        if due:
            self._sweep(due)
        if self.results_kept_for is not None:
            with self.store.transaction() as session:
                retention.drop_old_results(session, kept_for=self.results_kept_for, limit=DROP_LIMIT)

    def _sweep(self, due: Collection[Due]) -> None:
        if Due.EXPIRED_DELIVERIES in due:
            with self.store.transaction() as session:
                deliveries.return_expired(session, limit=SWEEP_LIMIT)
        if Due.TIMEOUTS in due:
            self._settle_timeouts()
        if Due.UNCOUNTED_RESULTS in due:
            self._count()
        if Due.STOPPING_BATCHES in due:
            with self.store.transaction() as session:
                batches.settle_stopping(session, limit=SWEEP_LIMIT)
        if Due.STARTS in due:
            with self.store.transaction() as session:
                starts.start_due(session, limit=SWEEP_LIMIT)
        if Due.EXPERIMENTS in due:
            self._experiment()
        # Also without PENDING_DELIVERIES and READY_SHARDS: what has just been done may have made some.
        self.issue()
        if Due.UNSTORED_RESPONSES in due:
            with self.store.transaction() as session:
                for batch_id in responses.unstored(session, limit=SWEEP_LIMIT):
                    control.remove(session, batch_id)
        if Due.DELETED_BATCHES in due:
            with self.store.transaction() as session:
                retention.drop_deleted(session, limit=DROP_LIMIT)

    def issue(self) -> None:
        """Issue tickets for due rows; a notification calls for no more than this."""
        # Deliveries first: somebody waits for a webhook, while shards have spare tickets out.
        callbacks = partial(delivery_tickets.issue, most_at_once=self.callbacks_per_receiver)
        self._issue(CALLBACKS_QUEUE, 0, callbacks)
        with self.store.look() as session:
            # A model without a worker gets no tickets: its shards wait as rows.
            slots = workers.slots_by_model(session, GPU_QUEUE)
        for model, count in slots.items():
            self._issue(gpu_queue(model), count, partial(tickets.issue_shards, model=model))

    def tidy(self) -> None:
        """Drop rows that nobody will ask for again."""
        with self.store.transaction() as session:
            idempotency.forget_the_old(session)
            workers.forget_the_dead(session)
            receivers.forget_the_idle(session)
            if self.results_kept_for is not None:
                retention.drop_old_events(session, kept_for=self.results_kept_for, limit=DROP_LIMIT)
        with self.store.transaction() as session:
            meters.fold_the_old(session)
            batch_counts.fold(session)
            usage.fold(session)
            response_cache.drop_expired(session)

    def _settle_timeouts(self) -> None:
        with self.store.look() as session:
            late = timeouts.due(session, limit=SWEEP_LIMIT)
        for batch_id, shard_ids in late.items():
            with self.store.transaction() as session:
                timeouts.settle(session, batch_id, shard_ids)

    def _experiment(self) -> None:
        with self.store.look() as session:
            found = experiments.open_ids(session, limit=SWEEP_LIMIT)
        for experiment_id in found:
            with self.store.transaction() as session:
                experiments.advance(session, experiment_id)

    def _count(self) -> None:
        """Count what workers have saved and not counted, since they died or the batch was locked."""
        with self.store.look() as session:
            behind = tally.batches_behind(session, limit=SWEEP_LIMIT)
        for batch_id in behind:
            with self.store.transaction() as session:
                counting.count(session, batch_id)

    def _issue(self, queue: str, slots: int, issue: Callable[..., Sequence[Ticket]]) -> None:
        try:
            is_empty = self.broker.length(queue) == 0
        except RedisError as error:
            logger.warning("Redis does not answer: %s", error)
            return
        with self.store.transaction() as session:
            due = issue(
                session,
                window=max(MIN_WINDOW, WINDOW_PER_SLOT * slots),
                reissue_after=REISSUE_WHEN_EMPTY if is_empty else REISSUE_ALWAYS,
            )
        try:
            for ticket in due:
                self.publish(ticket)
        except BrokerError as error:
            logger.warning("tickets cannot be published and will be issued again: %s", error)
