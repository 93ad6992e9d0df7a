"""Define the kinds of request, and the parameters that each is stored with."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, Self

from worker.values.sampling import SamplingParams

# A text, or token ids.
Prompt = str | tuple[int, ...]


class RequestKind(StrEnum):
    """Kind of output that a request asks for."""

    GENERATION = "generation"  # continuations of its prompts
    EMBEDDING = "embedding"  # a vector for each prompt
    SCORING = "scoring"  # how likely given continuations are


class Pooling(StrEnum):
    """Rows of the final hidden states that form an embedding."""

    LAST = "last"  # the last token's
    MEAN = "mean"  # the mean over all tokens


@dataclass(frozen=True, slots=True)
class EmbeddingParams:
    """Parameters of an embedding."""

    pooling: Pooling = Pooling.LAST
    normalize: bool = True  # scale the vector, cut to its dimensions, to length one
    dimensions: int | None = None  # keep only so many first values of the vector; None: all
    encoding: Literal["float", "base64"] = "float"  # in which the client reads vectors

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the parameters that `to_json` wrote."""
        return cls(**value | {"pooling": Pooling(value["pooling"])})


@dataclass(frozen=True, slots=True)
class ScoringParams:
    """Continuations to score, each tokenized on its own; the space before a continuation belongs to it."""

    continuations: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        return {"continuations": list(self.continuations)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the parameters that `to_json` wrote."""
        return cls(tuple(value["continuations"]))


Params = SamplingParams | EmbeddingParams | ScoringParams

_BY_KIND: dict[RequestKind, type[Params]] = {
    RequestKind.GENERATION: SamplingParams,
    RequestKind.EMBEDDING: EmbeddingParams,
    RequestKind.SCORING: ScoringParams,
}


def to_prompts(inputs: Iterable[Any]) -> tuple[Prompt, ...]:
    """Return the prompts of a stored list."""
    return tuple(one if isinstance(one, str) else tuple(one) for one in inputs)


def params_from_json(kind: RequestKind, value: dict[str, Any]) -> Params:
    """Rebuild the parameters that a request of this kind was stored with."""
    return _BY_KIND[kind].from_json(value)


def kind_of(params: Params | None) -> RequestKind:
    """Return the kind of request that has these parameters; None (the batch's own) is a generation."""
    if params is None:
        return RequestKind.GENERATION
    return next(kind for kind, type_ in _BY_KIND.items() if isinstance(params, type_))


def max_output_tokens(params: Params, *, max_tokens: int, num_prompts: int) -> int:
    """Return the most tokens that a request can generate; 0 for a reading."""
    return max_tokens * params.num_choices * num_prompts if isinstance(params, SamplingParams) else 0
