"""How attention on a GPU cuts its work: sizes that a tuner may change without changing what is computed."""

from dataclasses import dataclass

MIN_SPLIT_SIZE = 512
MAX_SPLITS = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of one kind of launch. Only `split_size` and `block_n` change the order of a row's sums."""

    has_prompts: bool  # whether Sequences may have more rows than `split_rows`
    split_rows: int  # a Sequence with at most this many rows is split along its context
    split_size: int  # tokens of a split: fixed for an engine, so that a row's bits do not depend on its mates
    block_tile_m: int  # rows of the products in a prompt's tile: query rows times heads of a group
    block_n: int  # tokens at once
    num_warps: int
    num_stages: int
    programs_per_processor: int

    def rows_per_tile(self, group: int) -> int:
        """Query rows of a prompt that one tile takes."""
        return self.block_tile_m // group

    def block_split_m(self, group: int) -> int:
        """Rows of the products in a split: at least what one matrix instruction takes."""
        return max(16, 1 << (self.split_rows * group - 1).bit_length())


def choose_tiling(
    group: int, head_dim: int, kv_format: str, *, max_query_len: int, max_context_len: int, split_rows: int = 1
) -> Tiling:
    """Return the tiling for a shape of model and a kind of Step; not tuned on any GPU yet."""
    has_prompts = max_query_len > split_rows
    longest = max(16, group)
    tile_m = 128 if head_dim <= 128 else 64
    return Tiling(
        has_prompts=has_prompts,
        split_rows=split_rows,
        split_size=choose_split_size(max_context_len),
        block_tile_m=max(tile_m, 1 << (longest - 1).bit_length()) if has_prompts else 16,
        block_n=64 if head_dim <= 128 else 32,
        num_warps=8 if has_prompts else 4,
        num_stages=2 if kv_format == "plain" and head_dim > 128 else 3,
        programs_per_processor=2 if has_prompts else 4,
    )


def choose_split_size(max_context_len: int) -> int:
    """Return the tokens of a split: as few as leave no more than MAX_SPLITS for the merge."""
    size = MIN_SPLIT_SIZE
    while size * MAX_SPLITS < max_context_len:
        size *= 2
    return size
