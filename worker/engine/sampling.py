"""How a request's tokens are chosen, as the engine sees it."""

import math
from dataclasses import dataclass

from worker.engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request; raises InvalidRequestError naming the field that is out of range.

    `temperature=0` is greedy. `top_k=0`, `top_p=1` and `min_p=0` are off; they apply in that order, after the
    temperature. `seed=None` draws one. `stop` strings and `stop_token_ids` end the output, which is cut
    before them; `ignore_eos` ignores the checkpoint's end tokens only.
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        problems = {
            "max_tokens": self.max_tokens < 1,
            "temperature": not (0 <= self.temperature < math.inf),
            "top_p": not 0 < self.top_p <= 1,
            "top_k": self.top_k < 0,
            "min_p": not 0 <= self.min_p <= 1,
            "stop": any(not text for text in self.stop),
        }
        for name, is_wrong in problems.items():
            if is_wrong:
                raise InvalidRequestError(f"{name} is out of range: {getattr(self, name)!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0
