"""Whose share of the engine a request's tokens are. Knows nothing of who that is."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A group that shares the engine with others, how much of it is due to the group, and for what."""

    group: Hashable = None
    weight: float = 1.0  # above 0
    # Among the group's own: higher goes first, and batches of one priority share.
    priority: int = 0
    batch: Hashable = None


ONLY = Share()
