"""How far a Sequence's output has got in its grammar."""

import numpy as np
from llguidance import LLMatcher

from worker.engine.requests.errors import InvalidRequestError
from worker.values.grammar import Grammar


class GrammarMatcher:
    """How far one Sequence's output has got in its grammar."""

    __slots__ = ("_grammar", "_matcher")

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher

    def forbidden(self, vocab_size: int) -> np.ndarray:
        """Return which tokens may not come next, bool [vocab_size]; end tokens may where the text may end."""
        allowed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(~allowed, count=vocab_size, bitorder="little").view(np.bool_)

    def push(self, token_id: int) -> bool:
        """Take the token that was chosen; return whether the text is complete and nothing may follow.

        Raises InvalidRequestError when the grammar was too complex to go on with.
        """
        # A matcher that has failed allows an end token, and would take it.
        if self._matcher.is_error() or not self._matcher.consume_token(token_id):
            raise InvalidRequestError(self._grammar.explain(self._matcher.get_error()))
        return self._matcher.is_stopped()
