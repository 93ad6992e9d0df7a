"""Options for the test and the bench of sampling."""

from dataclasses import dataclass

OFF = 1 << 31  # of top_k


@dataclass(frozen=True, slots=True)
class SamplingCase:
    """The size of a model's vocabulary and a row's options."""

    vocab_size: int
    temperature: float = 1.0
    top_k: int = OFF
    top_p: float = 1.0
    min_p: float = 0.0
    levels: int | None = None  # logits of so many values only: many are equal


CASES: tuple[SamplingCase, ...] = (
    SamplingCase(1),
    SamplingCase(20, temperature=0.0),
    SamplingCase(20, temperature=0.0, levels=3),
    SamplingCase(40, temperature=0.0, levels=1),  # the first of equals, in three blocks
    SamplingCase(20),
    SamplingCase(20, temperature=0.3),
    SamplingCase(20, temperature=2.5, min_p=0.1),
    SamplingCase(20, top_k=1),
    SamplingCase(20, top_k=7),
    SamplingCase(20, top_k=19),
    SamplingCase(20, top_p=0.6),
    SamplingCase(20, top_p=1e-6),
    SamplingCase(20, temperature=0.7, top_k=12, top_p=0.8),
    SamplingCase(20, temperature=0.7, top_k=12, top_p=0.95, min_p=0.05),
    SamplingCase(20, top_k=9, levels=4),
    SamplingCase(20, top_p=0.7, levels=4),
    SamplingCase(20, top_k=10, top_p=0.5, levels=3),
    SamplingCase(20, top_k=15, top_p=0.99, levels=1),
    SamplingCase(40, temperature=1.5),  # three blocks
    SamplingCase(40, top_k=25, top_p=0.9, levels=4),
)
