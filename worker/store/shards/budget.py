"""Limits the requests that start to what a batch's `max_total_tokens` leaves."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.requests.requests import MAX_OUTPUT_TOKENS, ShardRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.values.requests import max_output_tokens

# Prompts of files are not counted before they run; this many bytes of text make one token, about.
BYTES_PER_TOKEN = 3


def affordable(
    session: Session, batch: BatchRow, shard_id: int, requests: Sequence[ShardRequest]
) -> Sequence[ShardRequest]:
    """Return the first requests of a claimed shard that fit the budget of a locked batch, at least one.

    Each is charged its prompt and its longest output, and so are those of the batch's running shards. The
    others stay in the shard, which becomes ready again when these are done.
    """
    if batch.max_total_tokens is None:
        return requests
    left = batch.max_total_tokens - batch.input_tokens - batch.output_tokens
    left -= _promised(session, batch, shard_id)
    count = 0
    for request in requests:
        left -= _cost(request)
        if left < 0:
            break
        count += 1
    return requests[: max(1, count)]


def _cost(request: ShardRequest) -> int:
    num_bytes = sum(len(one.encode()) for one in request.prompts if isinstance(one, str))
    num_ids = sum(len(one) for one in request.prompts if not isinstance(one, str))
    outputs = max_output_tokens(
        request.params, max_tokens=request.max_tokens, num_prompts=len(request.prompts)
    )
    return num_bytes // BYTES_PER_TOKEN + num_ids + outputs


def _promised(session: Session, batch: BatchRow, shard_id: int) -> int:
    """Return the most tokens that the batch's other running shards may still use."""
    num_tokens = func.octet_length(RequestRow.prompt) / BYTES_PER_TOKEN + MAX_OUTPUT_TOKENS
    running = (
        select(func.coalesce(func.sum(num_tokens), 0))
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(
            ShardRow.batch_id == batch.id,
            ShardRow.id != shard_id,
            ShardRow.state == ShardState.RUNNING,
            ResultRow.request_id.is_(None),
        )
    )
    return int(session.scalar(running) or 0)
