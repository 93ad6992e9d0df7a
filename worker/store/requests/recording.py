"""Inserts Results, all of one save by one statement."""

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Text,
    any_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.orm import Session

from worker.store.database import clock
from worker.store.rows.requests import PartialOutputRow, ResultRow, ToolTurnRow
from worker.values.results import NewResult, storable

COLUMNS = (
    "request_id",
    "batch_id",
    "sequence",
    "outcome",
    "output",
    "finish_reason",
    "model_id",
    "payload",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "error_code",
    "error_message",
    "source",
    "similarity",
    "hit_is_right",
    "prefill_seconds",
    "decode_seconds",
    "padding_seconds",
    "started_at",
    "first_token_at",
)
# All rows in one message, as a JSON array: a message each takes Postgres twice the time, the worker thrice.
_GIVEN = func.json_populate_recordset(
    literal_column("NULL::results"), cast(bindparam("rows", type_=Text()), JSON)
).table_valued(*COLUMNS)
_TABLE = ResultRow.metadata.tables[ResultRow.__tablename__]
_INSERT = insert(_TABLE).from_select(COLUMNS, select(*_GIVEN.c))
# What is kept of requests while they have no Result, and when the engine first ran each of them.
_GONE = union_all(
    *(
        select(
            delete(kept)
            .where(kept.request_id == any_(bindparam("ids", type_=ARRAY(BigInteger))))
            .returning(kept.request_id, kept.started_at)
            .cte(kept.__tablename__ + "_gone")
        )
        for kept in (PartialOutputRow, ToolTurnRow)
    )
).subquery()
_FORGET = select(_GONE.c.request_id, func.min(_GONE.c.started_at)).group_by(_GONE.c.request_id)


def record(
    session: Session,
    batch_id: str,
    results: Sequence[NewResult],
    *,
    last_number: int | None,
    model_id: int | None,
) -> None:
    """Insert results of a model, numbered after `last_number`; with None, they get no number yet."""
    begun = session.execute(_FORGET, {"ids": [result.request_id for result in results]})
    resumed = {request_id: started_at for request_id, started_at in begun if started_at is not None}
    moments = [moment for result in results for moment in (result.started_at, result.first_token_at)]
    times = clock.to_times(session, moments)
    rows = [
        {
            "request_id": result.request_id,
            "batch_id": batch_id,
            "sequence": None if last_number is None else last_number + place,
            "outcome": result.outcome,
            "output": None if result.output is None else storable(result.output),
            "finish_reason": result.finish_reason,
            "model_id": model_id,
            "payload": None if result.payload is None else result.payload.to_json(),
            "num_prompt_tokens": result.num_prompt_tokens,
            "num_cached_tokens": result.num_cached_tokens,
            "num_output_tokens": result.num_output_tokens,
            "error_code": result.error.code if result.error else None,
            "error_message": result.error.message if result.error else None,
            "source": result.source,
            "similarity": result.similarity,
            "hit_is_right": result.hit_is_right,
            "prefill_seconds": result.seconds.prefill,
            "decode_seconds": result.seconds.decode,
            "padding_seconds": result.seconds.padding,
            "started_at": resumed.get(result.request_id, started_at),
            "first_token_at": first_token_at,
        }
        for place, (result, started_at, first_token_at) in enumerate(
            zip(results, times[::2], times[1::2], strict=True), 1
        )
    ]
    as_json = json.dumps(rows, ensure_ascii=False, default=datetime.isoformat)
    session.execute(_INSERT, {"rows": as_json})
