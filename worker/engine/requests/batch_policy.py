"""Configures when the engine starts requests, which ones together, and how many."""

from dataclasses import dataclass
from typing import Any

from worker.engine.requests.errors import ConfigError

POLICIES = (
    "continuous",
    "fixed",
    "window",
    "adaptive",
    "priority",
    "length-buckets",
    "token-budget",
    "memory",
)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits of a batch of readings, and the name of what holds generations back.

    A batch of readings is formed when it has reached a limit, or when an item has waited for
    `window_seconds`; all limits apply together. An item that alone is over a limit gets a batch of its own.
    Generations are admitted as worker/engine/scheduling/batch_gate.py describes, by the limits of the policy
    that `name` selects. Raises ConfigError naming the field that is wrong.
    """

    name: str = "continuous"  # one of POLICIES
    max_items: int | None = None  # None: any number
    max_tokens: int | None = None  # None: as many as four Steps hold
    max_memory_share: float = 0.5  # of the KV cache's Blocks
    window_seconds: float = 0.0
    # From forming a batch to its end; the token limit adapts to the measured time of batches.
    latency_target_seconds: float | None = None
    length_borders: tuple[int, ...] = ()  # tokens; a batch holds only items between two neighbouring borders
    priority_seconds: float = 10.0  # waiting time that one level of priority is worth; 0: ignore priority

    @property
    def aging_seconds(self) -> float | None:
        """Waiting time that one level of priority is worth among generations; None: priority comes first."""
        return self.priority_seconds if self.name == "priority" else None

    def __post_init__(self) -> None:
        problems = {
            "name": self.name not in POLICIES,
            "max_items": self.max_items is not None and self.max_items < 1,
            "max_tokens": self.max_tokens is not None and self.max_tokens < 1,
            "max_memory_share": not 0 < self.max_memory_share <= 1,
            "window_seconds": not 0 <= self.window_seconds < float("inf"),
            "latency_target_seconds": self.latency_target_seconds is not None
            and not 0 < self.latency_target_seconds < float("inf"),
            "length_borders": any(border < 1 for border in self.length_borders)
            or tuple(sorted(set(self.length_borders))) != self.length_borders,
            "priority_seconds": not 0 <= self.priority_seconds < float("inf"),
        }
        for name, is_wrong in problems.items():
            if is_wrong:
                raise ConfigError(f"batch policy: {name} is out of range: {getattr(self, name)!r}")


def batch_policy(
    name: str,
    *,
    timeout_seconds: float = 0.05,
    size: int = 32,
    latency_seconds: float = 0.25,
    priority_seconds: float = 10.0,
    lengths: tuple[int, ...] = (64, 256, 1024),
    tokens: int = 16_384,
    memory_share: float = 0.5,
) -> BatchPolicy:
    """Return the policy of this name; each takes the parameters that it needs. Raises ConfigError."""
    own: dict[str, dict[str, Any]] = {
        "continuous": {},
        "fixed": {"max_items": size, "window_seconds": timeout_seconds},
        "window": {"window_seconds": timeout_seconds},
        "adaptive": {"latency_target_seconds": latency_seconds},
        "priority": {"priority_seconds": priority_seconds},
        "length-buckets": {"length_borders": lengths, "window_seconds": timeout_seconds},
        "token-budget": {"max_tokens": tokens},
        "memory": {"max_memory_share": memory_share},
    }
    if name not in own:
        raise ConfigError(f"the batch policy must be one of {', '.join(POLICIES)}, not {name!r}")
    return BatchPolicy(name=name, **own[name])
