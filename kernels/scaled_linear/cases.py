"""Shapes for the test and the bench of the 8-bit product."""

# Each: num_tokens, in_features, out_features
CASES: tuple[tuple[int, int, int], ...] = ((1, 1, 2), (17, 77, 34), (33, 640, 70))
# Llama 3.1 8B: in_features, out_features.
BENCH_SHAPES: tuple[tuple[int, int], ...] = (
    (4096, 6144),
    (4096, 4096),
    (4096, 28672),
    (14336, 4096),
    (8192, 8192),
)
BENCH_TOKENS: tuple[int, ...] = (1, 16, 32, 64, 128, 256, 1024, 4096)
