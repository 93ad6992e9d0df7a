"""Outputs that must fit a Grammar, token by token, for one checkpoint's vocabulary. Knows no tensors."""

from collections.abc import Collection
from functools import cached_property, lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from worker.engine.errors import InvalidRequestError
from worker.engine.tokenizer import Tokenizer
from worker.grammar import LIMITS, Grammar, LibraryPanicError, on_deep_stack

MAX_COMPILED = 64  # 0.2 MB each as a rule, 10 MB if made to hurt


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


class GrammarCompiler:
    """Makes matchers for one checkpoint's tokens. Safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    def prepare(self, grammar: Grammar) -> None:
        """Compile a grammar that is new, which can take long, so that `matcher` is quick; raises nothing."""
        self._compiled(grammar)

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """Return a matcher at its beginning; raises InvalidRequestError with the library's message."""
        compiled = self._compiled(grammar)
        if isinstance(compiled, str):
            raise InvalidRequestError(compiled)
        return GrammarMatcher(grammar, compiled.deep_copy())

    def _compile(self, grammar: Grammar) -> LLMatcher | str:
        """Return a matcher to copy, or what is wrong."""
        if problem := grammar.excess:
            return grammar.explain(problem)
        try:
            vocabulary = self._vocabulary
        except InvalidRequestError as error:
            return str(error)
        try:
            matcher = on_deep_stack(lambda: LLMatcher(vocabulary, grammar.source, log_level=0, limits=LIMITS))
        except LibraryPanicError as error:
            return grammar.explain(str(error))
        matcher.compute_bitmask()  # each copy starts with this done
        return grammar.explain(matcher.get_error()) if matcher.is_error() else matcher

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        size = self._tokenizer.vocab_size
        ends = sorted(token_id for token_id in self._end_token_ids if token_id < size)
        if not ends:
            raise InvalidRequestError("grammar: the checkpoint names no end token, and a grammar needs one")
        try:
            return LLTokenizer(self._tokenizer.to_json(), n_vocab=max(size, self._vocab_size), eos_token=ends)
        except ValueError as error:
            raise InvalidRequestError(f"grammar: this tokenizer cannot be used: {error}") from error
