"""What a proposer may cost when few tokens are left."""

import pytest

from tests.fixtures.speculation import Fixed, make, plan_for
from worker.engine.scheduling.plan import StepPlan
from worker.engine.speculation.account import CREDIT_STEPS, LEFT, PROBED, START_STEPS, Account
from worker.engine.speculation.proposer import NO_GUESS, GuessedTokens


def with_left(plan: StepPlan, num_tokens: int) -> StepPlan:
    """Let each Sequence get so many tokens more."""
    for entry in plan.entries:
        entry.sequence.max_length = len(entry.sequence.token_ids) + num_tokens
    return plan


@pytest.mark.parametrize(
    ("num_sequences", "num_steps", "expected"),
    [
        (PROBED, 1_000, CREDIT_STEPS),
        (PROBED + 1, 1_000, START_STEPS),
        (PROBED, 8, 8 * LEFT),
        (PROBED + 1, 8, 8 * LEFT),
    ],
)
def test_it_begins_with_no_more_than_the_steps_to_come_are_worth(
    num_sequences: int, num_steps: int, expected: float
) -> None:
    account = Account(Fixed(NO_GUESS))
    plan = with_left(plan_for(make(1.0, 0.0), num_sequences), num_steps)
    plan.entries[0].sequence.max_length -= 5  # the one that has most counts
    account.begin(plan, 2.0)
    assert account.balance == 2.0 * expected


def test_nobody_is_asked_for_what_follows_the_last_token() -> None:
    guess = GuessedTokens((10, 11), (("lookup", (2, 0)),) * 2)
    made = make(1.0, 0.0)
    made.use([proposer := Fixed(guess)])
    assert made.extend(with_left(plan_for(made), 2), 512).num_guesses == 1
    looks = proposer.num_looks
    assert looks > 0
    assert made.extend(with_left(plan_for(made), 1), 512).num_guesses == 0
    assert proposer.num_looks == looks
