"""Streams results as JSON lines, on request until the batch has ended. The last line may be an error."""

import asyncio
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from api.batches import service
from api.dependencies import Services
from api.errors import ON_THE_WAY, ErrorBody, on_the_way
from api.json_lines import one_line

LOOK_SECONDS = 0.5


async def result_lines(services: Services, batch_id: str, *, after: int, follow: bool) -> AsyncIterator[str]:
    """Yield the results after a cursor as JSON lines; with `follow`, until the batch has ended."""
    try:
        while True:
            found = await run_in_threadpool(service.page, services, batch_id, after=after, limit=service.PAGE)
            for result in found.data:
                yield one_line(result.model_dump_json()) + "\n"
            after = found.next
            if not found.has_more:
                if not follow or found.status.is_terminal:
                    return
                await asyncio.sleep(LOOK_SECONDS)
    except ON_THE_WAY as error:
        yield one_line(ErrorBody(error=on_the_way(error).detail).model_dump_json(exclude_none=True)) + "\n"
