"""Defines the request for an embedding and its outcome."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.share import ONLY, Share


class Pooling(StrEnum):
    """Selects the rows of the final hidden states that form the vector."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # the mean over all tokens


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A text or its token ids to embed; raises InvalidRequestError naming the field that is out of range.

    `dimensions` keeps only the vector's first values; `normalize` then scales the vector to length one.
    """

    id: Hashable
    prompt: str | Sequence[int]
    pooling: Pooling = Pooling.LAST
    normalize: bool = True
    dimensions: int | None = None  # None: all
    priority: int = 0  # among readings; higher goes first
    add_special_tokens: bool = True
    share: Share = ONLY

    def __post_init__(self) -> None:
        if self.pooling not in tuple(Pooling):
            raise InvalidRequestError(f"pooling is none of {', '.join(Pooling)}: {self.pooling!r}")
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequestError(f"dimensions is out of range: {self.dimensions!r}")


@dataclass(frozen=True, slots=True)
class Embedding:
    """Outcome of an EmbeddingRequest; `vector` is empty after an error or a cancellation."""

    id: Hashable
    vector: tuple[float, ...]  # float32 values
    num_prompt_tokens: int
    num_cached_tokens: int
    error: str | None = None
    is_cancelled: bool = False
    is_too_long: bool = False  # the error: the prompt is too long for the model
