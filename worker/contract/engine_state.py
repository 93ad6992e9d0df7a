"""Define what a worker reports of its engine's memory and queue at each heartbeat."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

ENGINE_STATE = "engine_state"  # key in a worker's info; it is missing while the model loads


@dataclass(frozen=True, slots=True)
class EngineState:
    """Blocks of the KV cache and limits of Steps now, and what the prefix cache did since the start."""

    num_blocks: int
    num_used_blocks: int  # held by Sequences
    num_cached_blocks: int  # found by the prefix cache, held or not
    num_running: int  # Sequences
    num_waiting: int
    prefix_queried_tokens: int
    prefix_cached_tokens: int
    prefix_evictions: int
    # The most in a Step now; 0: a worker of an earlier version does not say.
    max_num_sequences: int = 0
    max_tokens_per_step: int = 0

    @classmethod
    def of_worker(cls, info: Mapping[str, Any]) -> Self | None:
        """Return the state in a worker's info; None: it has no engine, or loads it."""
        said = info.get(ENGINE_STATE)
        return (
            None
            if said is None
            else cls(**{one.name: said[one.name] for one in fields(cls) if one.name in said})
        )

    @property
    def occupancy(self) -> float:
        """The share of Blocks that Sequences hold."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens found in the prefix cache; None: none were looked up."""
        asked = self.prefix_queried_tokens
        return self.prefix_cached_tokens / asked if asked else None
