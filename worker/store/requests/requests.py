"""Writes requests by COPY, loads them for a shard, and records each result once."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import ARRAY, BigInteger, Text, any_, bindparam, case, cast, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from worker.contract.models import Model
from worker.quality.expected import Expected
from worker.store.requests import timeouts, tool_turns
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import PartialOutputRow, RequestRow, ResultRow
from worker.values.caching import CacheMode
from worker.values.requests import (
    Params,
    Prompt,
    RequestKind,
    kind_of,
    max_output_tokens,
    params_from_json,
    to_prompts,
)
from worker.values.results import NewResult, PartialOutput, RequestError, ToolTurn
from worker.values.sampling import SamplingParams
from worker.values.tool_loops import ToolLoop

COPY_REQUESTS = """
    COPY requests (
        batch_id, shard_id, position, custom_id, kind, prompt, inputs, add_special_tokens, params,
        is_streamed, max_tokens, num_prompt_tokens, timeout_seconds, digest, cache,
        cache_ttl_seconds, endpoint, is_wrong_line, metadata, tool_loop, expected
    ) FROM STDIN
"""
# Equal for identical requests of a shard; a request without a digest equals no other.
IDENTITY = func.coalesce(func.encode(RequestRow.digest, "hex"), cast(RequestRow.id, Text))

_PARAMS = func.coalesce(RequestRow.params, BatchRow.params)
# The most tokens that a request can generate, over all prompts and choices: `NewRequest.max_output_tokens`
# of its row, in a query that joins its batch.
MAX_OUTPUT_TOKENS = case(
    (RequestRow.kind != RequestKind.GENERATION, 0),
    else_=RequestRow.max_tokens
    * func.coalesce(_PARAMS["best_of"].as_integer(), _PARAMS["n"].as_integer(), 1)
    * func.coalesce(func.jsonb_array_length(RequestRow.inputs), 1),
)
# What a ShardRequest takes from its row.
CLAIMED = (
    RequestRow.id,
    RequestRow.position,
    RequestRow.custom_id,
    RequestRow.kind,
    RequestRow.prompt,
    RequestRow.inputs,
    RequestRow.add_special_tokens,
    RequestRow.is_streamed,
    RequestRow.max_tokens,
    RequestRow.params,
    RequestRow.digest,
    RequestRow.cache,
    func.coalesce(RequestRow.cache_ttl_seconds, BatchRow.cache_ttl_seconds).label("cache_ttl_seconds"),
    RequestRow.tool_loop,
)
# Claims and saves run these. To build one takes Python longer than to run it, so they are built once.
_WAITING = (
    select(
        RequestRow.id,
        func.row_number().over(partition_by=IDENTITY, order_by=RequestRow.position).label("number"),
        func.count().over(partition_by=IDENTITY).label("num_copies"),
    )
    .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
    .where(RequestRow.shard_id == bindparam("of_shard"), ResultRow.request_id.is_(None))
    .subquery()
)
_REMAINING = (
    select(*CLAIMED, _WAITING.c.num_copies, timeouts.SECONDS_LEFT.label("seconds_left"), PartialOutputRow)
    .join(_WAITING, _WAITING.c.id == RequestRow.id)
    .join(BatchRow, BatchRow.id == RequestRow.batch_id)
    .outerjoin(PartialOutputRow, PartialOutputRow.request_id == RequestRow.id)
    .where(_WAITING.c.number == 1)
    .order_by(RequestRow.position)
)
_GIVEN = bindparam("ids", type_=ARRAY(BigInteger))  # one parameter, however many ids there are
_WITH_RESULT = select(ResultRow.request_id).where(ResultRow.request_id == any_(_GIVEN))
_SHARDS_WITH_SOME_LEFT = (
    select(RequestRow.shard_id)
    .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
    .where(RequestRow.shard_id == any_(_GIVEN), ResultRow.request_id.is_(None))
    .distinct()
)


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One request to submit. `params=None` means the batch's; embeddings and scorings have their own."""

    prompt: str
    max_tokens: int  # of one choice, within the context
    num_prompt_tokens: int = 0  # over all prompts
    custom_id: str | None = None
    params: Params | None = None
    add_special_tokens: bool = True
    inputs: tuple[Prompt, ...] | None = None  # several prompts, or token ids, instead of `prompt`
    is_streamed: bool = False
    cache: CacheMode | None = None  # None: the batch's
    cache_ttl_seconds: float | None = None  # None: the batch's
    priority: int | None = None  # None: the batch's
    timeout_seconds: float | None = None  # from the batch's acceptance to the result; None: no limit
    endpoint: str | None = None  # of a line of a file; None: the batch's
    error: RequestError | None = None  # of a wrong line: it fails at once
    metadata: dict[str, Any] | None = None  # returned with the result
    tool_loop: ToolLoop | None = None  # of a chat whose calls the worker makes
    expected: Expected | None = None  # by which comparisons judge its output
    model: Model | None = None  # that runs it; None: the batch's

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All prompts, in order."""
        return self.inputs or (self.prompt,)

    @property
    def num_bytes(self) -> int:
        """The size of its prompts and of what is kept beside them, in UTF-8; a token id counts as 4 bytes."""
        beside = (self.tool_loop, self.expected)
        kept_apart = sum(len(_to_text(one)) for one in beside if one is not None)
        return kept_apart + sum(
            len(prompt.encode()) if isinstance(prompt, str) else 4 * len(prompt) for prompt in self.prompts
        )

    def max_output_tokens(self, batch_params: SamplingParams) -> int:
        """Return the most tokens that the request can generate, over all prompts and choices."""
        params = self.params or batch_params
        return max_output_tokens(params, max_tokens=self.max_tokens, num_prompts=len(self.prompts))


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """One request that still has to run, for itself and its copies."""

    id: int
    position: int
    prompts: tuple[Prompt, ...]
    add_special_tokens: bool
    is_streamed: bool
    max_tokens: int  # of one choice
    params: Params  # except max_tokens
    partial_output: PartialOutput | None = None  # of an earlier run
    digest: bytes | None = None
    cache: CacheMode | None = None  # None: the batch's
    # The oldest stored answer that it takes, and how long its own is kept; None: the deployment's.
    cache_ttl_seconds: float | None = None
    timeout_at: float | None = None  # `time.monotonic()` of this process; without a result by then, it fails
    num_copies: int = 1  # requests of the shard that its Result answers, itself included
    custom_id: str | None = None
    tool_loop: ToolLoop | None = None
    tool_turns: tuple[ToolTurn, ...] = ()  # of that, recorded by earlier runs


def copy_in(
    session: Session,
    batch_id: str,
    requests: Sequence[NewRequest],
    shard_ids: Sequence[int],
    digests: Sequence[bytes | None],
    *,
    first_position: int = 0,
) -> None:
    """Write requests of a batch by COPY, each with its shard and digest, at consecutive positions."""
    connection = session.connection().connection.driver_connection
    assert connection is not None  # noqa: S101 - a session in a transaction has one
    with connection.cursor() as cursor, cursor.copy(COPY_REQUESTS) as copy:
        for position, (request, shard_id, digest) in enumerate(
            zip(requests, shard_ids, digests, strict=True), first_position
        ):
            copy.write_row(
                (
                    batch_id,
                    shard_id,
                    position,
                    request.custom_id,
                    kind_of(request.params).value,
                    request.prompt,
                    None if request.inputs is None else Jsonb(request.inputs),
                    request.add_special_tokens,
                    None if request.params is None else _written(request.params),
                    request.is_streamed,
                    request.max_tokens,
                    request.num_prompt_tokens,
                    request.timeout_seconds,
                    digest,
                    request.cache,
                    request.cache_ttl_seconds,
                    request.endpoint,
                    request.error is not None,
                    None if request.metadata is None else json.dumps(request.metadata),
                    None if request.tool_loop is None else _to_text(request.tool_loop),
                    None if request.expected is None else _to_text(request.expected),
                )
            )
    timed = {
        shard_id
        for request, shard_id in zip(requests, shard_ids, strict=True)
        if request.timeout_seconds is not None
    }
    if timed:
        timeouts.note(session, timed)


@lru_cache(maxsize=1024)  # requests mostly share their parameters
def _written(params: Params) -> str:
    return json.dumps(params.to_json())


def _to_text(kept: ToolLoop | Expected) -> str:
    """Return the JSON, in ASCII, by which a request's row keeps this."""
    return kept.to_json() if isinstance(kept, ToolLoop) else json.dumps(kept.to_json())


def remaining(session: Session, shard_id: int, batch_params: dict[str, Any]) -> list[ShardRequest]:
    """Return the requests of a shard that have no result yet, in order, the first of identical ones only."""
    shared = SamplingParams.from_json(batch_params)
    known = _Known(shared)
    rows = session.execute(_REMAINING, {"of_shard": shard_id}).all()
    turns = tool_turns.of(session, [row.id for row in rows if row.tool_loop is not None])
    now = time.monotonic()
    return [
        ShardRequest(
            id=row.id,
            position=row.position,
            prompts=(row.prompt,) if row.inputs is None else to_prompts(row.inputs),
            add_special_tokens=row.add_special_tokens,
            is_streamed=row.is_streamed,
            max_tokens=row.max_tokens,
            params=known.read(row.kind, row.params),
            partial_output=_to_partial(row.PartialOutputRow),
            digest=row.digest,
            cache=row.cache,
            cache_ttl_seconds=row.cache_ttl_seconds,
            timeout_at=None if row.seconds_left is None else now + float(row.seconds_left),
            num_copies=row.num_copies,
            custom_id=row.custom_id,
            tool_loop=None if row.tool_loop is None else ToolLoop.from_json(row.tool_loop),
            tool_turns=tuple(turns.get(row.id, ())),
        )
        for row in rows
    ]


@dataclass(slots=True)
class _Known:
    """Cache of the parameters read last, as the requests of a shard mostly share them."""

    shared: SamplingParams  # for requests without parameters of their own
    kind: RequestKind | None = None
    value: dict[str, Any] | None = None
    params: Params | None = None

    def read(self, kind: RequestKind, value: dict[str, Any] | None) -> Params:
        """Return the parameters that a request was stored with."""
        if value is None:
            return self.shared
        if self.params is None or (kind, value) != (self.kind, self.value):
            self.kind, self.value = kind, value
            self.params = params_from_json(kind, value)
        return self.params


def _to_partial(kept: PartialOutputRow | None) -> PartialOutput | None:
    return None if kept is None else PartialOutput(kept.token_ids, kept.text, kept.model_id)


def expected_of(session: Session, request_ids: Collection[int]) -> dict[int, Expected]:
    """Return what is expected of the outputs of these requests, by id, where anything is."""
    if not request_ids:
        return {}
    kept = session.execute(select(RequestRow.id, RequestRow.expected).where(RequestRow.id.in_(request_ids)))
    return {request_id: Expected.from_json(json.loads(text)) for request_id, text in kept if text is not None}


def groups_without_result(session: Session, shard_id: int) -> list[list[int]]:
    """Return the ids of a shard's requests that have no result yet, identical ones together, in order."""
    ids = func.array_agg(aggregate_order_by(RequestRow.id, RequestRow.position))
    rows = session.scalars(
        select(ids)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.shard_id == shard_id, ResultRow.request_id.is_(None))
        .group_by(IDENTITY)
        .order_by(func.min(RequestRow.position))
    )
    return [list(group) for group in rows]


def shards_with_some_left(session: Session, shard_ids: Collection[int]) -> set[int]:
    """Return the shards that have a request without a result."""
    if not shard_ids:
        return set()
    return set(session.scalars(_SHARDS_WITH_SOME_LEFT, {"ids": list(shard_ids)}))


def with_result(session: Session, request_ids: Collection[int]) -> set[int]:
    """Return those of these requests that have a result."""
    return set(session.scalars(_WITH_RESULT, {"ids": list(request_ids)}))


def without_result(session: Session, results: Sequence[NewResult]) -> list[NewResult]:
    """Return the results of requests that have none yet.

    A commit of unknown outcome may have saved some, or another run of the shard.
    """
    if not results:
        return []
    known = with_result(session, [result.request_id for result in results])
    return [result for result in results if result.request_id not in known]


def cancelled_in(session: Session, shard_id: int) -> list[int]:
    """Return the ids of a shard's requests that were cancelled and have no result yet."""
    rows = session.scalars(
        select(RequestRow.id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(
            RequestRow.shard_id == shard_id,
            RequestRow.cancelled_at.is_not(None),
            ResultRow.request_id.is_(None),
        )
    )
    return list(rows)
