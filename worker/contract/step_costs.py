"""What a Step costs, as a worker says it of its engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

# Where a worker's info has it; None there until enough Steps were measured.
STEP_COSTS = "step_costs"


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a Step, of each Sequence in it, of each further token, of each token attended to."""

    step: float
    row: float
    token: float
    context: float
    max_rows: int  # Sequences of the largest Steps that were measured

    @classmethod
    def of_worker(cls, info: Mapping[str, Any]) -> Self | None:
        """Return what a worker's info says; None: it has measured too little."""
        said = info.get(STEP_COSTS)
        return None if said is None else cls(**{one.name: said[one.name] for one in fields(cls)})
