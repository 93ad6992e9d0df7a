"""Verifies guessed tokens against the tokens that the model's own logits choose."""

from collections.abc import Sequence as Items


def right_rows(ahead: Items[tuple[int, ...]], chosen: Items[int | None]) -> list[list[int]]:
    """Return, for each Sequence of a Step, its rows whose chosen tokens are its next tokens.

    `ahead` holds the guesses before each row: of a chain, or of a tree with each guess after the one that it
    follows. A Sequence's first row has none before it. `chosen` holds the token that each row's logits
    choose. A row counts if its guesses are what was chosen at the rows before it.

    A row's token is chosen as it is without guesses: the likeliest one, or the one that its position's own
    random number draws. So the output has the tokens that it would have without guesses, for any guesses and
    any seed. For a guess of probability 1 this is rejection sampling with the residual (Leviathan, Kalman and
    Matias, arXiv:2211.17192): the guess is kept with its probability, and otherwise the token is drawn from
    the others. Of several guesses for one place, each is kept with its probability, as by the recursive rule
    for trees (Miao et al., "SpecInfer", arXiv:2305.09781), which tries one after the other against what is
    left.
    """
    kept: list[list[int]] = []
    right: tuple[int | None, ...] = ()  # what was chosen after the Sequence's known tokens so far
    for row, guesses in enumerate(ahead):
        if not guesses:
            kept.append([row])
            right = (chosen[row],)
        elif guesses == right:
            kept[-1].append(row)
            right = (*right, chosen[row])
    return kept
