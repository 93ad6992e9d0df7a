"""Compares what two served models make of a text, by the logprobs that they report of its tokens."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from api.cli.comparing.outputs import OutputsError
from api.cli.comparing.served import Served
from worker.quality.text import TextComparison, compare_text, top_divergence

PIECE = 2000  # characters that are read together: they fit the context of any model
AT_ONCE = 8  # pieces in a request
TOP = 20  # likeliest tokens that are reported; servers allow no more

# The id of a token, and the logprobs of it and of the likeliest ones at its place, by id.
Position = tuple[str, dict[str, float]]


def compare_on(a: Served, b: Served, text: str) -> TextComparison:
    """Compare B with A on a text.

    Raises:
        OutputsError: the text has no tokens, the two read it as other tokens, or one reports no logprobs.
        RefusedError: an API refuses to read it.

    """
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    groups = [pieces[start : start + AT_ONCE] for start in range(0, len(pieces), AT_ONCE)]
    first, second = (list(chain.from_iterable(_read(one, group) for group in groups)) for one in (a, b))
    if not first:
        raise OutputsError("The text has no tokens that anything is before.")
    if [own for own, _ in first] != [own for own, _ in second]:
        raise OutputsError("The two models have other tokenizers: they read the text as other tokens.")
    pairs = [(found_a, found_b) for (_, found_a), (_, found_b) in zip(first, second, strict=True)]
    return compare_text(
        [found[own] for own, found in first],
        [found[own] for own, found in second],
        [top_divergence(*pair) for pair in pairs],
        sum(_likeliest(one) == _likeliest(other) for one, other in pairs),
    )


def _read(served: Served, pieces: Sequence[str]) -> list[Position]:
    """Return every token of pieces of text but the first of each."""
    answer = served.call("completions", prompt=list(pieces), max_tokens=1, temperature=0, prompt_logprobs=TOP)
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [_to_position(one) for choice in choices for one in choice["prompt_logprobs"] if one]
    except (LookupError, TypeError, AttributeError) as error:
        raise OutputsError(f"{served.api.url} does not report prompt_logprobs of {served.model}.") from error


def _to_position(found: dict[str, dict[str, Any]]) -> Position:
    return next(iter(found)), {token: one["logprob"] for token, one in found.items()}


def _likeliest(found: dict[str, float]) -> str:
    return max(found, key=lambda token: found[token])
