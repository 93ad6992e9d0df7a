"""Defines the request for an embedding and its outcome."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.share import ONLY, Share
from worker.values.requests import EmbeddingParams
from worker.values.results import DeviceSeconds


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A text or its token ids to embed; raises InvalidRequestError naming the field that is out of range."""

    id: Hashable
    prompt: str | Sequence[int]
    params: EmbeddingParams = EmbeddingParams()
    priority: int = 0  # among readings; higher goes first
    add_special_tokens: bool = True
    share: Share = ONLY

    def __post_init__(self) -> None:
        dimensions = self.params.dimensions
        if dimensions is not None and dimensions < 1:
            raise InvalidRequestError(f"dimensions must be at least 1, not {dimensions!r}")


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
    started_at: float | None = None  # `time.monotonic()` at its first start; None: it never ran
    seconds: DeviceSeconds = DeviceSeconds()  # its share of the time of its Steps
