"""Matches a Sequence's output against its grammar, token by token."""

from collections.abc import Sequence as Tokens

import numpy as np
from llguidance import LLMatcher

from worker.engine.requests.errors import InvalidRequestError
from worker.values.grammar import Grammar


class GrammarMatcher:
    """Position of one Sequence's output in its grammar."""

    __slots__ = ("_grammar", "_matcher")

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher

    def forbidden(self, vocab_size: int, guesses: Tokens[int] = ()) -> np.ndarray:
        """Return the tokens that may not come next, or after `guesses`, bool [vocab_size].

        End tokens are allowed where the text may end. `guesses` must be such that `num_allowed` counts all.
        """
        if guesses:
            self._matcher.consume_tokens(list(guesses))
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if guesses:
            self._matcher.rollback(len(guesses))
        return np.unpackbits(~allowed, count=vocab_size, bitorder="little").view(np.bool_)

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
