"""Compiles output formats into token matchers for one checkpoint's vocabulary. Knows no tensors."""

from collections.abc import Collection
from functools import cached_property, lru_cache

from llguidance import LLMatcher, LLTokenizer

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.text.tokenizer import Tokenizer
from worker.values.grammar import Grammar, GrammarError, vocabulary_of
from worker.values.sampling import OutputFormat

MAX_COMPILED = 64  # typically 0.2 MB each, 10 MB for a malicious one


class GrammarCompiler:
    """Makes GrammarMatchers for one checkpoint's tokens, and caches compiled grammars.

    Safe to call from any thread.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._compiled = lru_cache(MAX_COMPILED)(self._compile)

    def prepare(self, wanted: OutputFormat) -> None:
        """Compile a new format, which can take long, so that `matcher` is quick; raises nothing."""
        self._compiled(wanted)

    def matcher(self, wanted: OutputFormat) -> GrammarMatcher:
        """Return a new matcher of the format; raises InvalidRequestError with the library's message."""
        compiled = self._compiled(wanted)
        if isinstance(compiled, str):
            raise InvalidRequestError(compiled)
        grammar, matcher = compiled
        return GrammarMatcher(grammar, matcher.deep_copy())

    def _compile(self, wanted: OutputFormat) -> tuple[Grammar, LLMatcher] | str:
        """Return a matcher to copy, with its grammar, or the error message."""
        try:
            grammar = Grammar.of(wanted.kind, wanted.source)
            return grammar, grammar.compile(self._vocabulary)
        except GrammarError as error:
            return str(error)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return vocabulary_of(
            self._tokenizer.to_json(),
            tokenizer_size=self._tokenizer.vocab_size,
            vocab_size=self._vocab_size,
            end_token_ids=self._end_token_ids,
        )
