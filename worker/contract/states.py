"""Define the states of each row, and who moves a row out of each."""

from enum import StrEnum


class BatchStatus(StrEnum):
    """State of a Batch."""

    PENDING = "pending"  # the first claim of one of its shards, or a cancel, moves it on
    PROCESSING = "processing"  # the save of the last result, a cancel, or its deadline moves it on
    CANCELLING = "cancelling"  # or stopping itself; its last shard to stop, or the dispatcher, moves it on
    COMPLETED = "completed"  # terminal: every request has a result of its own
    FAILED = "failed"  # terminal: a stop rule ended it
    CANCELLED = "cancelled"  # terminal: the customer stopped it, and some request was not done
    EXPIRED = "expired"  # terminal: its completion window closed, and some request was not done

    @property
    def is_terminal(self) -> bool:
        """Return whether no event moves a batch out of this status."""
        return self not in LIVE_STATUSES


LIVE_STATUSES = frozenset({BatchStatus.PENDING, BatchStatus.PROCESSING, BatchStatus.CANCELLING})


class ShardState(StrEnum):
    """State of a Shard."""

    READY = "ready"  # a claim moves it on, or the end of its batch
    RUNNING = "running"  # its holder finishes or releases it; the dispatcher returns an expired lease
    FINISHED = "finished"  # terminal: every request in it has a result
    DROPPED = "dropped"  # terminal: its batch ended first


class Lane(StrEnum):
    """Kind of work that a Batch and its Shards are."""

    BATCH = "batch"  # waits its turn; the dispatcher issues Tickets for its Shards
    INTERACTIVE = "interactive"  # somebody waits for the answer; no list of batches shows it


class AttemptCause(StrEnum):
    """Cause of a RequestAttempt, a try at a Request that brought no Result."""

    WORKER_LOST = "worker_lost"  # its worker died, hung or lost Postgres until the lease expired
    HANDED_BACK = "handed_back"  # its worker was shutting down
    PAUSED = "paused"  # its batch was paused


class EventState(StrEnum):
    """State of a Delivery of a WebhookEvent."""

    PENDING = "pending"  # a claim by a callbacks worker moves it on, when it is due
    SENDING = "sending"  # the attempt's outcome, or the dispatcher once its lease expires, moves it on
    DELIVERED = "delivered"  # terminal: the receiver answered 2xx
    FAILED = "failed"  # terminal: the last attempt failed, or the receiver answered 410


class FilesStage(StrEnum):
    """State of a Batch's files."""

    READING = "reading"  # the files process moves it on, when every line is a request or none can be
    RUNNING = "running"  # the files process moves it on, when the batch has ended and its files are written
    DONE = "done"  # terminal: every file that can be downloaded exists


class ExperimentStatus(StrEnum):
    """State of an Experiment."""

    RUNNING = "running"  # a verdict, the end of its batches, or a customer's call moves it on
    ENDED = "ended"  # terminal: it has its verdict, or every request was judged, or the batch has stopped
    ROLLED_BACK = "rolled_back"  # terminal: the other model is worse, or the customer had enough
    PROMOTED = "promoted"  # terminal: the other model runs the rest of the batch


class ExperimentMode(StrEnum):
    """What becomes of the results of an Experiment's other model."""

    SHADOW = "shadow"  # they are compared, and never returned
    AB = "ab"  # they are returned: it runs these requests in place of the batch's model


class UploadStatus(StrEnum):
    """State of an Upload."""

    PENDING = "pending"  # completion, cancellation or expiry moves it on
    COMPLETED = "completed"  # terminal: it has become a file
    CANCELLED = "cancelled"  # terminal: its parts are gone
    EXPIRED = "expired"  # terminal: it was not completed in time
