"""Identifies the group that a request's tokens count for. Does not know what a group stands for."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A group's claim on the engine: the group, its weight, and the request's priority and batch in it."""

    group: Hashable = None
    weight: float = 1.0  # above 0
    # Within the group: higher goes first; batches of equal priority share.
    priority: int = 0
    batch: Hashable = None


ONLY = Share()
