"""Streams results as JSON lines, CSV or Parquet, on request until the batch has ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool

from api.batches import service
from api.batches.result_schemas import ResultAnswer
from api.batches.service import Reading
from api.dependencies import Services
from api.errors import ON_THE_WAY, ErrorBody, on_the_way
from api.json_lines import one_line
from api.tables import Column, Table

LOOK_SECONDS = 0.5
# The columns of a table of results.
COLUMNS = {
    "index": Column.INTEGER,
    "custom_id": Column.TEXT,
    "status": Column.TEXT,
    "output": Column.TEXT,
    "finish_reason": Column.TEXT,
    "choices": Column.TEXT,  # JSON
    "embedding": Column.NUMBERS,
    "scores": Column.TEXT,  # JSON
    "tool_turns": Column.TEXT,  # JSON
    "error_code": Column.TEXT,
    "error_message": Column.TEXT,
    "input_tokens": Column.INTEGER,
    "cached_tokens": Column.INTEGER,
    "output_tokens": Column.INTEGER,
    "model": Column.TEXT,
    "source": Column.TEXT,
    "sequence": Column.INTEGER,
    "created_at": Column.TIME,
    "started_at": Column.TIME,
    "completed_at": Column.TIME,
    "latency_ms": Column.NUMBER,
}
# And of their requests, if asked for.
REQUEST_COLUMNS = {
    "prompt": Column.TEXT,
    "max_tokens": Column.INTEGER,
    "metadata": Column.TEXT,  # JSON
    "expected": Column.TEXT,  # JSON
}
SAME = ("index", "custom_id", "output", "finish_reason", "embedding", "sequence", "created_at", "started_at",
        "completed_at", "latency_ms")  # fmt: skip


def columns_of(reading: Reading) -> dict[str, Column]:
    """Return the columns of a table of results."""
    return COLUMNS | (REQUEST_COLUMNS if reading.with_requests else {})


async def result_lines(
    services: Services, batch_id: str, reading: Reading, *, follow: bool
) -> AsyncIterator[str]:
    """Yield results as JSON lines. If they end early, the last line is an object with only `error`."""
    try:
        async for page in _pages(services, batch_id, reading, follow=follow):
            for result in page:
                yield one_line(result.model_dump_json()) + "\n"
    except ON_THE_WAY as error:
        yield one_line(ErrorBody(error=on_the_way(error).detail).model_dump_json(exclude_none=True)) + "\n"


async def result_table(
    services: Services, batch_id: str, reading: Reading, table: Table, *, follow: bool
) -> AsyncIterator[bytes]:
    """Yield results as the bytes of a table. If they end early, so does the connection, without its end."""
    async for page in _pages(services, batch_id, reading, follow=follow):
        if piece := await run_in_threadpool(table.write, [to_row(result) for result in page]):
            yield piece
    yield await run_in_threadpool(table.close)


async def _pages(
    services: Services, batch_id: str, reading: Reading, *, follow: bool
) -> AsyncIterator[Sequence[ResultAnswer]]:
    """Yield the results after a cursor; with `follow`, until the batch has ended."""
    while True:
        found = await run_in_threadpool(service.page, services, batch_id, reading, limit=service.PAGE)
        yield found.data
        reading = reading.after_page(found.next)
        if not found.has_more:
            if not follow or found.status.is_terminal:
                return
            await asyncio.sleep(LOOK_SECONDS)


def to_row(result: ResultAnswer) -> dict[str, Any]:
    """Return a result as a row of a table."""
    usage, error, request = result.usage, result.error, result.request
    row = {name: getattr(result, name) for name in SAME} | {
        "status": result.status.value,
        "choices": _to_json(result.choices),
        "scores": _to_json(result.scores),
        "tool_turns": _to_json(result.tool_turns),
        "error_code": None if error is None else error.code,
        "error_message": None if error is None else error.message,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "model": None if result.model is None else result.model.name,
        "source": result.source.value,
    }
    if request is not None:
        row["prompt"] = request.prompt if request.inputs is None else json.dumps(request.inputs)
        row["max_tokens"] = request.max_tokens
        row["metadata"] = None if request.metadata is None else json.dumps(request.metadata)
        row["expected"] = None if request.expected is None else json.dumps(request.expected)
    return row


def _to_json(values: Sequence[Any] | None) -> str | None:
    return None if values is None else json.dumps([value.model_dump(exclude_none=True) for value in values])
