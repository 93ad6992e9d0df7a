"""Configures when the BatchFormer forms a batch of readings, from which items, and how large."""

from dataclasses import dataclass

from worker.engine.requests.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits of a batch; all of them apply together. Raises ConfigError naming the field that is wrong.

    A batch is formed when it has reached a limit, or when an item has waited for `window_seconds`. An item
    that alone is over a limit gets a batch of its own.
    """

    max_items: int | None = None  # None: any number
    max_tokens: int | None = None  # None: as many as four Steps hold
    max_memory_share: float = 0.5  # of the KV cache's Blocks
    window_seconds: float = 0.0
    # From forming a batch to its end; the token limit adapts to the measured time of batches.
    latency_target_seconds: float | None = None
    length_borders: tuple[int, ...] = ()  # tokens; a batch holds only items between two neighbouring borders
    priority_seconds: float = 10.0  # waiting time that one level of priority is worth; 0: ignore priority

    def __post_init__(self) -> None:
        problems = {
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


POLICIES = {
    "fixed-size": BatchPolicy(max_items=32, window_seconds=0.1),
    "time-window": BatchPolicy(window_seconds=0.02),
    "adaptive": BatchPolicy(latency_target_seconds=0.25),
    "priority": BatchPolicy(priority_seconds=60.0),
    "length-buckets": BatchPolicy(length_borders=(64, 256, 1024)),
    "token-budget": BatchPolicy(max_tokens=4096),
    "memory-limit": BatchPolicy(max_memory_share=0.1),
}


def named_policy(name: str) -> BatchPolicy:
    """Return the policy of this name; raises ConfigError listing the known names."""
    if name not in POLICIES:
        raise ConfigError(f"the batch policy must be one of {', '.join(POLICIES)}, not {name!r}")
    return POLICIES[name]
