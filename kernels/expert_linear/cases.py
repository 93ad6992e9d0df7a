"""Shapes for the test and the bench of products by expert."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertCase:
    """The number of tokens of each expert, and the shape of one expert's weight."""

    counts: tuple[int, ...]
    in_features: int
    out_features: int


CASES: tuple[ExpertCase, ...] = (
    ExpertCase((1,), 256, 2),
    ExpertCase((3, 0, 1), 256, 22),  # one has nothing to do
    ExpertCase((0, 17, 0, 33, 2, 0), 256, 70),  # several tiles, the first and the last without
)
# Qwen3 30B-A3B: experts, experts per token, in_features, out_features.
BENCH_SHAPES: tuple[tuple[int, int, int, int], ...] = ((128, 8, 2048, 1536), (128, 8, 768, 2048))
BENCH_TOKENS: tuple[int, ...] = (1, 16, 64, 256, 2048)
