"""Checks token ids against the model's vocabulary."""

from collections.abc import Sequence

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.stats import ModelInfo


def check_token_ids(token_ids: Sequence[int], what: str, info: ModelInfo) -> None:
    """Raise InvalidRequestError, starting with `what`, if a token id is outside the vocabulary."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= info.vocab_size):
        raise InvalidRequestError(f"{what} a token id outside 0..{info.vocab_size - 1}")
