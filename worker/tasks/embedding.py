"""Embed prompts on the worker's engine, for the semantic cache."""

from collections.abc import Sequence

from worker.engine.engine_thread import EngineThread
from worker.engine.requests.embedding import EmbeddingRequest
from worker.store.requests.requests import ShardRequest
from worker.values.requests import EmbeddingParams, Pooling


def embed(engine: EngineThread, requests: Sequence[ShardRequest]) -> list[Sequence[float]]:
    """Return the unit vector of each request's prompt; empty for a prompt that cannot be embedded."""
    work = engine.submit(
        [
            EmbeddingRequest(
                id=request.id,
                prompt=request.prompts[0],
                params=EmbeddingParams(Pooling.MEAN),
                add_special_tokens=request.add_special_tokens,
            )
            for request in requests
        ]
    )
    vectors: dict[object, Sequence[float]] = {}
    while not work.is_done:
        vectors |= {outcome.id: outcome.vector for outcome in work.take(1.0)}
    return [vectors[request.id] for request in requests]
