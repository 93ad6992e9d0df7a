"""Verifies guessed tokens against the tokens that the model's own logits choose."""

from collections.abc import Sequence as Items


def right_rows(ahead: Items[tuple[int, ...]], chosen: Items[int | None]) -> list[list[int]]:
    """Return, for each Sequence of a Step, its rows whose chosen tokens are its next tokens.

    `ahead` holds the guesses before each row; a Sequence's first row has none before it. `chosen` holds the
    token that each row's logits choose. A row counts while every guess before it was chosen too.

    A row's token is chosen as it is without guesses: the likeliest one, or the one that its position's own
    random number draws. So the output has the tokens that it would have without guesses, for any guesses and
    any seed. For a guess of probability 1 this is rejection sampling with the residual (Leviathan, Kalman and
    Matias, arXiv:2211.17192): the guess is kept with its probability, and otherwise the token is drawn from
    the others.
    """
    kept: list[list[int]] = []
    is_right = True
    for row, guesses in enumerate(ahead):
        if not guesses:
            kept.append([row])
            is_right = True
        else:
            is_right = is_right and chosen[row - 1] == guesses[-1]
            if is_right:
                kept[-1].append(row)
    return kept
