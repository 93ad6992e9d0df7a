"""Chooses which of several models a worker holds.

Pure arithmetic on one moment: the work that each model has, and what a switch costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# While a model has work, it stays for so many times the cost of a switch, so that switches take no more than
# about a tenth of the time.
WORTH = 10.0


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work that one model has."""

    due_seconds: float  # from now to the earliest time at which some of it is due; negative: it is late
    has_clients: bool = False  # that wait for some of it


def choose(
    work: Mapping[str, ModelWork], held: str | None, *, held_seconds: float, switch_seconds: float
) -> str | None:
    """Return the model that a worker should hold now; None: it holds none, and none has work.

    `work` has the models with work, `held` the model that the worker has held for `held_seconds`. It stays
    until it has no work, or until it was worth the switch and another's work is due earlier. A client that
    waits for another model waits for no more than one switch's time of this one.
    """
    others = [model for model in work if model != held]
    if not others:
        return held or next(iter(work), None)
    first = min(others, key=lambda model: work[model].due_seconds)
    if held is None or held not in work:
        return first
    worth = switch_seconds * (1.0 if work[first].has_clients else WORTH)
    is_earlier = work[first].due_seconds < work[held].due_seconds
    return first if is_earlier and held_seconds >= worth else held
