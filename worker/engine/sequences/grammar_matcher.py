"""Matches a Sequence's output against its grammar, token by token."""

from collections.abc import Sequence as Tokens

from llguidance import LLMatcher

from worker.engine.requests.errors import InvalidRequestError
from worker.values.grammar import Grammar


class GrammarMatcher:
    """Position of one Sequence's output in its grammar."""

    __slots__ = ("_grammar", "_matcher")

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher

    def allowed(self, ahead: Tokens[Tokens[int]] = ((),)) -> list[bytes]:
        """Return which tokens may come next after each of these guesses: a bit for each, lowest first.

        End tokens are allowed where the text may end. Each guess must be such that `num_allowed` counts all
        of it. It is quickest if each begins with the one before it.
        """
        found: list[bytes] = []
        consumed: Tokens[int] = ()
        for guess in ahead:
            num_equal = 0
            for before, token_id in zip(consumed, guess, strict=False):
                if before != token_id:
                    break
                num_equal += 1
            if num_equal < len(consumed):
                self._matcher.rollback(len(consumed) - num_equal)
            if num_equal < len(guess):
                self._matcher.consume_tokens(list(guess[num_equal:]))
            found.append(self._matcher.compute_bitmask())
            consumed = guess
        if consumed:
            self._matcher.rollback(len(consumed))
        return found

    def num_allowed(self, token_ids: Tokens[int]) -> int:
        """Return how many of these tokens the grammar allows to come next, one after another."""
        return self._matcher.validate_tokens(list(token_ids))

    def forced(self, guesses: Tokens[int] = ()) -> list[int]:
        """Return the usual tokens of the text that must come next, or after `guesses`, if there is only one.

        Other tokens may make the same text. `guesses` must be such that `num_allowed` counts all.
        """
        if not guesses:
            return self._matcher.compute_ff_tokens()
        self._matcher.consume_tokens(list(guesses))
        token_ids = self._matcher.compute_ff_tokens()
        self._matcher.rollback(len(guesses))
        return token_ids

    def push(self, token_id: int) -> bool:
        """Advance by the chosen token; return whether the text is complete, so that nothing may follow.

        Raises InvalidRequestError when the grammar is too complex to continue.
        """
        # A failed matcher would allow and accept an end token, so check it first.
        if self._matcher.is_error() or not self._matcher.consume_token(token_id):
            raise InvalidRequestError(self._grammar.explain(self._matcher.get_error()))
        return self._matcher.is_stopped()
