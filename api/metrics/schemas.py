"""Defines the answers of the metrics and cache routes. Null means that nothing was measured."""

from typing import Annotated

from pydantic import BaseModel, Field

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
    avg_latency_ms: float | None = Field(description="from the claim of a request's shard to its outcome")
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    batch_utilization: Share | None = Field(description="sequences in a step, of those it has room for")
    padding_efficiency: Share | None = Field(description="rows of a step that were of use")
    cache_hit_rate: Share | None = Field(description="of requests looked up in the response cache")
    prefix_cache_hit_rate: Share | None = Field(description="of prompt tokens, found in the prefix cache")
    device_seconds: dict[str, float] = Field(description="prefill, decode, padding")
    workers: int = Field(description="alive now")
    batches: dict[str, int] = Field(description="live ones by status")
    requests_pending: int
    shards_ready: int
    shards_running: int
    webhooks_pending: int


class PrefixCacheStats(BaseModel):
    """The engines' prefix caches, since the first day."""

    queried_tokens: int
    cached_tokens: int
    hit_rate: Share | None
    evictions: int


class CacheStats(BaseModel):
    """The size of the response cache now, and its lookups and hits since the first day."""

    total_entries: int
    semantic_entries: int = Field(description="of them, with the embedding of their prompt")
    total_size_mb: float = Field(description="on disk, indexes included")
    lookups: int
    hits: int
    exact_hits: int
    semantic_hits: int
    hit_rate: Share | None
    ttl_seconds: float
    semantic_available: bool = Field(description="whether this Postgres has pgvector")
    prefix_cache: PrefixCacheStats


class CacheCleared(BaseModel):
    """The response cache, or the tenant's part, is now empty. The engines' prefix caches hold no answers."""

    entries_removed: int
