"""Which part of a tree of guesses is verified, and what is learned from it."""

from collections.abc import Sequence as Items

import pytest

from tests.fixtures.speculation import Fixed, make, plan_for
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation.proposer import GuessedTokens

TREE = GuessedTokens(
    (10, 11, 20, 30, 21),
    (("medusa", 0), ("medusa", 1), ("medusa", 2), ("medusa", 3), ("medusa", 4)),
    (-1, 0, -1, 2, 2),
    (0.5, 0.4, 0.3, 0.2, 0.9),
)


class Whole(Fixed):
    """Guesses all of it, whatever the limit."""

    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        return [self.guess for _ in zip(sequences, limits, strict=True)]


def test_a_tree_says_which_of_its_tokens_are_right() -> None:
    assert TREE.right([20, 21, 5]) == [False, False, True, False, True]
    assert TREE.right([20]) == [False, False, True, False, False]
    assert TREE.right([None, 10]) == [False] * 5
    part = TREE.only((2, 4, 0))
    assert (part.token_ids, part.parents, part.sure) == ((20, 21, 10), (-1, 0, -1), (0.3, 0.9, 0.5))
    assert TREE.only((2, 4)) == GuessedTokens((20, 21), (("medusa", 2), ("medusa", 4)), (), (0.3, 0.9))


@pytest.mark.parametrize(
    ("num_tokens", "guesses", "parents"),
    [
        (1, (10,), ()),
        (2, (10, 20), (-1, -1)),
        (3, (10, 20, 21), (-1, -1, 1)),
        (6, (10, 20, 21, 11, 30), (-1, -1, 1, 0, 1)),
    ],
)
def test_the_likeliest_part_of_a_tree_is_verified(
    num_tokens: int, guesses: tuple[int, ...], parents: tuple[int, ...]
) -> None:
    made = make(1.0, 0.0)
    made.use([Whole(TREE)])
    entry = made.extend(plan_for(made), 1 + num_tokens).entries[0]
    assert (entry.guesses, entry.parents) == (guesses, parents)
    assert entry.num_tokens == 1 + len(guesses)


def test_a_tree_is_pruned_by_what_was_right() -> None:
    """Tokens that follow a wrong one were not tried, and keep their shares."""
    made = make(1.0, 0.0)
    made.use([Whole(TREE)])
    plan = plan_for(made)
    for _ in range(40):
        extended = made.extend(plan, 6)
        tokens = [[NextToken(20), NextToken(30), NextToken(5)] if extended.num_guesses else [NextToken(20)]]
        made.took(extended, 1.0, [plan.entries[0].sequence], tokens)
    rates = {kind: made.rates.of(plan.entries[0].sequence, kind, 0.4) for kind in TREE.kinds}
    assert rates["medusa", 2] > 0.8 < rates["medusa", 3]
    assert rates["medusa", 0] < 0.1 > rates["medusa", 4]
    assert rates["medusa", 1] == 0.4
    assert made.extend(plan, 3).entries[0].guesses == (20, 30)
    stats = made._stats
    assert stats.medusa_right_tokens * 5 == stats.medusa_guessed_tokens * 2


def test_what_a_sequence_cannot_say_is_no_part_of_its_tree() -> None:
    made = make(1.0, 0.0)
    made.use([Whole(TREE)])
    plan = plan_for(made)
    plan.entries[0].sequence.stop_token_ids = frozenset({20})
    assert made.extend(plan, 9).entries[0].guesses == (10, 11)
