import time

import pytest
from sqlalchemy import func, select

from tests.fixtures.batches import held, submit
from worker.store.database.session import Store
from worker.store.requests.recording import COLUMNS, record
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import Choice, DeviceSeconds, NewResult, Payload, RequestError

ODD = 'a "quoted" \\ line\nof\ttext, {1,NULL}, \N{SNOWMAN} \N{GRINNING FACE} \x7f'


def test_what_is_recorded_is_read_back(store: Store) -> None:
    submit(store, num_requests=4, shard_size=4)
    plain, full, failed, nothing = (request.id for request in held(store, 1).requests)
    payload = Payload(choices=(Choice(ODD, FinishReason.STOP), Choice("", FinishReason.LENGTH)))
    began = time.monotonic() - 5
    results = [
        NewResult(plain, Outcome.COMPLETED, ODD, FinishReason.STOP, 3, 1, 7),
        NewResult(
            full,
            Outcome.COMPLETED,
            "",
            FinishReason.LENGTH,
            2**40,
            0,
            1,
            payload=payload,
            seconds=DeviceSeconds(0.1, 1 / 3, 1e-9),
            source=Source.SEMANTIC_CACHE,
            similarity=0.1 + 0.2,
            hit_is_right=False,
            started_at=began,
            first_token_at=began + 1.5,
        ),
        NewResult(failed, Outcome.FAILED, None, None, 0, 0, 0, error=RequestError("bad", ODD)),
        NewResult(nothing, Outcome.CANCELLED, None, None, 0, 0, 0),
    ]
    with store.transaction() as session:
        batch_id = session.scalars(select(RequestRow.batch_id)).first() or ""
        record(session, batch_id, results[:3], last_number=10, model_id=None)
        record(session, batch_id, results[3:], last_number=None, model_id=None)
    with store.transaction() as session:
        rows = {row.request_id: row for row in session.scalars(select(ResultRow))}
        now = session.scalars(select(func.now())).one()
    assert [rows[one.request_id].sequence for one in results] == [11, 12, 13, None]
    for given in results:
        row = rows[given.request_id]
        same = {"outcome", "output", "finish_reason", "source", "similarity", "hit_is_right"}
        same |= {"num_prompt_tokens", "num_cached_tokens", "num_output_tokens"}
        assert same < set(COLUMNS)
        assert {name: getattr(row, name) for name in same} == {name: getattr(given, name) for name in same}
        seconds = DeviceSeconds(row.prefill_seconds, row.decode_seconds, row.padding_seconds)
        assert (row.batch_id, seconds, row.model_id) == (batch_id, given.seconds, None)
        error = None if row.error_code is None else RequestError(row.error_code, row.error_message or "")
        assert error == given.error
    full_row = rows[full]
    assert Payload.from_json(full_row.payload or {}) == payload
    assert rows[plain].payload is None
    assert full_row.started_at is not None
    assert full_row.first_token_at is not None
    assert full_row.started_at < now
    assert (full_row.first_token_at - full_row.started_at).total_seconds() == pytest.approx(1.5, abs=1e-5)
    assert (rows[plain].started_at, rows[plain].first_token_at) == (None, None)
