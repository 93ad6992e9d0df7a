"""Defines the answers of the metrics and cache routes. Null means that nothing was measured."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

from api.figures import LaneLatency, UsageFigures

Share = Annotated[float, Field(ge=0, le=1)]


class Summary(BaseModel):
    """The workers' measurements: totals since the first day, the rest over the last minutes."""

    requests_total: int = Field(description="that completed or failed, since the first day")
    requests_failed: int
    requests_deduplicated: int
    input_tokens: int
    output_tokens: int
    window_seconds: float = Field(description="what everything below was measured over")
    requests_per_second: float
    tokens_per_second: float = Field(description="generated, by the engines' own count")
    avg_latency_ms: float | None = Field(description="from the claim of a request's shard to its result")
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    latency: list[LaneLatency] = Field(description="by lane and priority; lanes and priorities with requests")
    batch_utilization: Share | None = Field(description="sequences in a step, of those it has room for")
    padding_efficiency: Share | None = Field(description="rows of a step that were of use")
    cache_hit_rate: Share | None = Field(description="of requests looked up in the response cache")
    prefix_cache_hit_rate: Share | None = Field(description="of prompt tokens, found in the prefix cache")
    speculation_hit_rate: Share | None = Field(description="of guessed tokens, the right ones")
    device_seconds: dict[str, float] = Field(description="of all steps: prefill, decode, padding")
    device_utilization: Share | None = Field(description="of the workers' time, in which a step ran")
    cpu_utilization: Share | None = Field(description="of the workers' cores")
    kv_utilization: Share | None = Field(description="blocks that sequences hold, of all; mean over steps")
    recent: UsageFigures = Field(description="of requests that got their result in the window")
    total: UsageFigures = Field(description="of all requests, since the first day")
    workers: int = Field(description="alive now")
    batches: dict[str, int] = Field(description="live ones by status")
    requests_pending: int
    shards_ready: int
    shards_running: int
    webhooks_pending: int


class WorkerCacheStats(BaseModel):
    """The KV cache of one live worker now, and its prefix cache since the process was started."""

    worker: str
    model: str | None
    blocks: int = Field(description="of the KV cache")
    used_blocks: int = Field(description="that sequences hold")
    cached_blocks: int = Field(description="whose content the prefix cache can find, held or not")
    occupancy: Share = Field(description="used_blocks of blocks")
    queried_tokens: int
    cached_tokens: int
    hit_rate: Share | None
    evictions: int


class PrefixCacheStats(BaseModel):
    """The engines' prefix caches: of all workers since the first day, and of each live worker."""

    queried_tokens: int
    cached_tokens: int
    hit_rate: Share | None
    evictions: int
    workers: list[WorkerCacheStats]


class CacheStats(BaseModel):
    """The size of the response cache now, and its lookups and hits since the first day."""

    total_entries: int
    semantic_entries: int = Field(description="of them, with the embedding of their prompt")
    total_size_mb: float = Field(description="on disk, indexes included")
    lookups: int
    hits: int
    exact_hits: int
    semantic_hits: int
    checks: int = Field(description="requests that the semantic cache had an answer for, run to check it")
    checks_right: int = Field(description="of these, those for which its answer was right")
    accuracy: Share | None = Field(description="checks_right of checks")
    hit_rate: Share | None
    ttl_seconds: float
    semantic_available: bool = Field(description="whether this Postgres has pgvector")
    prefix_cache: PrefixCacheStats


class CacheKind(StrEnum):
    """A cache that can be cleared."""

    RESPONSE = "response"
    PREFIX = "prefix"


class CacheCleared(BaseModel):
    """The caches that were cleared. Null: this one was not."""

    entries_removed: int | None = Field(description="from the response cache, or the tenant's part of it")
    workers: int | None = Field(
        description="live workers that clear their prefix cache: at once, or within seconds if they are busy"
    )
