"""Whose share of the engine a request's tokens are. Knows nothing of who that is."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """A group that shares the engine with others, and how much of it is due to the group beside them."""

    group: Hashable = None
    weight: float = 1.0  # above 0


ONLY = Share()
