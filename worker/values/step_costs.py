"""Define the costs of Steps, as an engine measures them and its worker reports them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

# Key in a worker's info; its value is None until enough Steps were measured.
STEP_COSTS = "step_costs"


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds per Step, per Sequence in it, per further token, and per token attended to."""

    step: float
    row: float
    token: float
    context: float
    max_rows: int  # Sequences in the largest Steps that were measured

    @classmethod
    def of_worker(cls, info: Mapping[str, Any]) -> Self | None:
        """Return the costs in a worker's info; None: it has measured too few Steps."""
        said = info.get(STEP_COSTS)
        return None if said is None else cls(**{one.name: said[one.name] for one in fields(cls)})
