"""Outputs that must fit a JSON schema, a regular expression or a list of choices. Knows no tensors.

Also for whoever wants to refuse a bad one early: `Grammar` and its `check` need no model.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from worker.engine.errors import InvalidRequestError
from worker.engine.tokenizer import Tokenizer

# Between the tokens of JSON. Bounded, because a model that is unsure can write white space for ever.
JSON_WHITESPACE = r"[ \n\r\t]{0,32}"
MAX_COMPILED = 1024  # about 0.2 MB each
# The library recurses along references and overflows a common stack, which kills the process: a thousand
# definitions that refer each to the next do it. At most 400 bytes of stack for each of the source were seen.
MAX_SOURCE_CHARACTERS = 1 << 17
STACK_BYTES = 1 << 28  # of address space; only what is touched is memory


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole output must be; made by one of the methods below, compiled by the engine.

    They raise InvalidRequestError for what is not even well-formed text; `check` judges the rest.
    """

    kind: str  # the method that made it
    source: str  # as llguidance takes it

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any]) -> Self:
        """Accept JSON that is valid by `schema`, with properties in the schema's order."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            source = LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_pattern": JSON_WHITESPACE}
            )
        except ValueError as error:
            raise InvalidRequestError(f"json_schema: {error}") from error
        return cls("json_schema", source)

    @classmethod
    def json_object(cls) -> Self:
        """Accept any JSON object."""
        return cls("json_object", cls.json_schema({"type": "object"}).source)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Accept what `pattern` matches as a whole, by the syntax of Rust's regex without look-around."""
        try:
            return cls("regex", LLMatcher.grammar_from_regex(pattern))
        except ValueError as error:
            raise InvalidRequestError(f"regex: {error}") from error

    @classmethod
    def choice(cls, options: Sequence[str]) -> Self:
        """Accept exactly one of `options`."""
        if not options:
            raise InvalidRequestError("choice: there is no option to choose from")
        quoted = ("".join(f"\\x{{{ord(character):x}}}" for character in option) for option in options)
        return cls("choice", cls.regex("|".join(quoted)).source)

    def check(self) -> None:
        """Raise InvalidRequestError, with the library's message, unless this can be compiled."""
        if problem := _too_long(self) or _on_deep_stack(lambda: LLMatcher.validate_grammar(self.source)):
            raise InvalidRequestError(_message(self, problem))


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
            raise InvalidRequestError(_message(self._grammar, self._matcher.get_error()))
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
        if problem := _too_long(grammar):
            return _message(grammar, problem)
        try:
            vocabulary = self._vocabulary
        except InvalidRequestError as error:
            return str(error)
        matcher = _on_deep_stack(lambda: LLMatcher(vocabulary, grammar.source, log_level=0))
        matcher.compute_bitmask()  # each copy starts with this done
        return _message(grammar, matcher.get_error()) if matcher.is_error() else matcher

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


def _message(grammar: Grammar, problem: str) -> str:
    # What follows <state> is the library's own debugging.
    return f"{grammar.kind}: {problem.partition('<state>')[0].strip()}"


def _too_long(grammar: Grammar) -> str:
    num_characters = len(grammar.source)
    if num_characters <= MAX_SOURCE_CHARACTERS:
        return ""
    return f"{num_characters} characters are over the limit of {MAX_SOURCE_CHARACTERS}"


_stack_size = threading.Lock()
Result = TypeVar("Result")


def _on_deep_stack(work: Callable[[], Result]) -> Result:
    """Run `work` on a thread of its own that has STACK_BYTES, and return its result."""
    with ThreadPoolExecutor(1, "grammar") as executor:
        with _stack_size:
            before = threading.stack_size(STACK_BYTES)
            running = executor.submit(work)  # starts the thread
            threading.stack_size(before)
        return running.result()
