"""Sampling parameters as they are stored with a batch or a request."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. `seed=None` draws afresh each run; `top_k=0` and `top_p=1` are off."""

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return asdict(self) | {"stop": list(self.stop)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the parameters that `to_json` wrote."""
        return cls(**value | {"stop": tuple(value["stop"])})
