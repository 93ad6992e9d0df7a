"""Defines the fields by which a batch or a request uses the response cache (docs/caching.md)."""

from typing import Annotated, Literal

from pydantic import Field

Cache = Annotated[
    Literal["off", "exact", "semantic"],
    Field(
        description="Whether greedy and seeded requests may be answered from the response cache: `exact` by"
        " the same request, `semantic` also by one that means nearly the same, which the tenant must be"
        " allowed. Default: HEADRACE_CACHE."
    ),
]
Similarity = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="The least cosine similarity of two prompts that share an answer of the semantic cache."
        " Default: HEADRACE_CACHE_SIMILARITY.",
    ),
]
CacheTtl = Annotated[
    float,
    Field(
        gt=0,
        lt=2**31,
        allow_inf_nan=False,
        description="Takes no stored answer that is older, and has its own kept for so long: at most"
        " HEADRACE_CACHE_TTL_SECONDS, the default.",
    ),
]
