"""Keeps answers of deterministic requests for a time, for later requests to the same model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, case, cast, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.rows.cache import CachedResponseRow
from worker.store.rows.requests import ResultRow
from worker.store.rows.table import Copier, columns_copied_by
from worker.values.results import NewResult

DROP_AT_ONCE = 5000

# Exact search among answers of one group, which holds few.
NEAREST = text("""
    SELECT asked.place, found.payload, found.similarity
    FROM unnest(CAST(:groups AS bytea[]), CAST(:vectors AS text[]), CAST(:ages AS interval[]))
        WITH ORDINALITY AS asked (grp, vec, age, place)
    CROSS JOIN LATERAL (
        SELECT payload, 1 - (embedding::vector <=> asked.vec::vector) AS similarity
        FROM cached_responses
        WHERE "group" = asked.grp AND embedding IS NOT NULL AND expires_at > now()
            AND now() - created_at <= asked.age
        ORDER BY embedding::vector <=> asked.vec::vector LIMIT 1
    ) AS found
    WHERE found.similarity >= :least
""")


@dataclass(frozen=True, slots=True)
class Known:
    """A stored answer, and the time since it was stored."""

    payload: Mapping[str, Any]
    age: timedelta


@dataclass(frozen=True, slots=True)
class Sought:
    """What the answer to a similar prompt must have: its group, a near embedding, and an age of `most`."""

    group: bytes
    embedding: Sequence[float]
    most: timedelta


@dataclass(frozen=True, slots=True)
class Nearest:
    """The answer to the nearest prompt, and the cosine similarity of the two prompts."""

    payload: Mapping[str, Any]
    similarity: float


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of the response cache in live entries and bytes on disk."""

    num_entries: int
    num_semantic: int  # of them, those with the embedding of their prompt
    num_bytes: int


def find(session: Session, keys: Collection[bytes]) -> dict[bytes, Known]:
    """Return the live answers under these keys, by key."""
    age = func.now() - CachedResponseRow.created_at
    rows = session.execute(
        select(CachedResponseRow.key, CachedResponseRow.payload, age).where(
            CachedResponseRow.key.in_(keys), CachedResponseRow.expires_at > func.now()
        )
    )
    return {key: Known(payload, age) for key, payload, age in rows}


def find_nearest(session: Session, asked: Sequence[Sought], *, least_similarity: float) -> dict[int, Nearest]:
    """Return the nearest answer to each by index in `asked`, if it is near enough."""
    rows = session.execute(
        NEAREST,
        {
            "groups": [one.group for one in asked],
            "vectors": [str(list(one.embedding)) for one in asked],
            "ages": [one.most for one in asked],
            "least": least_similarity,
        },
    )
    return {place - 1: Nearest(payload, similarity) for place, payload, similarity in rows}


def has_vectors(session: Session) -> bool:
    """Return whether this Postgres has pgvector, which the semantic cache requires."""
    return bool(session.scalar(text("SELECT 1 FROM pg_extension WHERE extname = 'vector'")))


def keep(session: Session, results: Sequence[NewResult], *, tenant_id: str) -> None:
    """Store the answers of results of this transaction that have a cache entry (`NewResult.keep`)."""
    by_request = {result.request_id: result.keep for result in results if result.keep is not None}
    if not by_request:
        return
    kept = columns_copied_by(Copier.CACHE, ResultRow)
    payload = func.jsonb_build_object(*(part for name in kept for part in (name, getattr(ResultRow, name))))
    found = session.execute(select(ResultRow.request_id, payload).where(ResultRow.request_id.in_(by_request)))
    now = session.scalar(select(func.now()))
    rows = {}
    for request_id, value in found:
        entry = by_request[request_id]
        rows[entry.key] = {
            "key": entry.key,
            "tenant_id": tenant_id,
            "group": entry.group,
            "payload": value,
            "embedding": None if entry.embedding is None else list(entry.embedding),
            "created_at": now,
            "expires_at": now + entry.ttl if now else None,
        }
    # In order of the keys, so that two concurrent saves cannot deadlock.
    statement = insert(CachedResponseRow).values([rows[key] for key in sorted(rows)])
    fresh = statement.excluded
    is_embedded = fresh.embedding.is_not(None)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[CachedResponseRow.key],
            set_={
                "payload": fresh.payload,
                "embedding": func.coalesce(fresh.embedding, CachedResponseRow.embedding),
                "group": case((is_embedded, fresh.group), else_=CachedResponseRow.group),
                "created_at": fresh.created_at,
                "expires_at": fresh.expires_at,
            },
        )
    )


def drop_expired(session: Session) -> int:
    """Delete at most `DROP_AT_ONCE` expired answers; return how many."""
    over = (
        select(CachedResponseRow.key)
        .where(CachedResponseRow.expires_at <= func.now())
        .order_by(CachedResponseRow.expires_at)
        .limit(DROP_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    dropped = (
        delete(CachedResponseRow).where(CachedResponseRow.key.in_(over)).returning(CachedResponseRow.key)
    )
    return len(session.scalars(dropped).all())


def clear(session: Session) -> int:
    """Delete every answer; return how many there were."""
    return len(session.scalars(delete(CachedResponseRow).returning(CachedResponseRow.key)).all())


def size(session: Session) -> CacheSize:
    """Return the number of live answers and the table's size on disk, indexes included."""
    live = CachedResponseRow.expires_at > func.now()
    entries, semantic, num_bytes = session.execute(
        select(
            func.count().filter(live),
            func.count().filter(live, CachedResponseRow.embedding.is_not(None)),
            func.pg_total_relation_size(cast(CachedResponseRow.__tablename__, Text)),
        ).select_from(CachedResponseRow)
    ).one()
    return CacheSize(entries, semantic, num_bytes)
