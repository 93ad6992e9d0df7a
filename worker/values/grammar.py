"""Constrain an output to a JSON schema, a regular expression, or one of a list. Must not know tensors.

The API refuses a bad grammar early; the engine compiles it for its tokens (worker/engine/text/grammar.py).
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from worker.values.endless_schema import is_endless

# White space between JSON tokens: one space, because a model that is unsure writes as much as it may.
JSON_WHITESPACE = " ?"
# The library recurses along references and overflows a common stack, which kills the process: a chain of a
# thousand definitions is enough. At most 400 bytes of stack for each byte of the source were seen.
MAX_SOURCE_CHARACTERS = 1 << 17
STACK_BYTES = 1 << 28  # of address space; only touched pages take memory
# A seventh of the library's default, with which refusing `((((a)))){1000}{1000}` took 220 MB and a second:
# now 40 MB and 0.1 s. A chain of 2,000 definitions still fits.
LIMITS = LLParserLimits(initial_lexer_fuel=150_000)


# Tokens that the API tries with a new grammar: usually under 20 ms, a second for a malicious grammar.
TRIAL_TOKENS = 8
NOT_UNDERSTOOD = "the grammar is not understood"
ENDLESS = "no value can match it: each would have to hold another without end"
DEAD_END = "NoExtension"  # start of the library's message when no token may come next
PANIC = "PanicException"  # pyo3 does not export it
_stack_size = threading.Lock()
Result = TypeVar("Result")


class GrammarError(ValueError):
    """A grammar that cannot be compiled; the message begins with its kind."""


class LibraryPanicError(Exception):
    """The library panicked on a grammar, which it never intends."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on a whole output, as `Grammar.regex("[a-z]+")`; the engine compiles it.

    The methods that make one raise GrammarError for malformed text; `check` judges the rest.
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
            raise GrammarError(f"json_schema: {error}") from error
        return cls("json_schema", source)

    @classmethod
    def json_object(cls) -> Self:
        """Accept any JSON object."""
        return cls("json_object", cls.json_schema({"type": "object"}).source)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Accept text that `pattern` matches as a whole, in the syntax of Rust's regex (no look-around)."""
        try:
            return cls("regex", LLMatcher.grammar_from_regex(pattern))
        except ValueError as error:
            raise GrammarError(f"regex: {error}") from error

    @classmethod
    def choice(cls, options: Sequence[str]) -> Self:
        """Accept exactly one of `options`."""
        if not options:
            raise GrammarError("choice: there is no option to choose from")
        quoted = ("".join(f"\\x{{{ord(character):x}}}" for character in option) for option in options)
        return cls("choice", cls.regex("|".join(quoted)).source)

    @classmethod
    def lark(cls, source: str) -> Self:
        """Accept what a grammar in llguidance's variant of Lark accepts."""
        return cls("lark", source)

    @classmethod
    def of(cls, kind: str, source: Any) -> Self:
        """Make the grammar of a stored output format: `kind` names one of the methods above."""
        if kind == "json_object":
            return cls.json_object()
        makers = (cls.json_schema, cls.regex, cls.choice, cls.lark)
        return next(make for make in makers if make.__name__ == kind)(source)

    def check(self, vocabulary: LLTokenizer) -> None:
        """Raise GrammarError unless this can be compiled, matched, and followed for TRIAL_TOKENS tokens."""
        self._on_deep_stack(lambda: self._follow(self._compiled(vocabulary), vocabulary))

    def compile(self, vocabulary: LLTokenizer) -> LLMatcher:
        """Return a matcher at its beginning; raises GrammarError unless something can match it."""
        return self._on_deep_stack(lambda: self._compiled(vocabulary))

    def _on_deep_stack(self, work: Callable[[], Result]) -> Result:
        num_characters = len(self.source)
        if num_characters > MAX_SOURCE_CHARACTERS:
            message = f"{num_characters} characters are over the limit of {MAX_SOURCE_CHARACTERS}"
            raise GrammarError(self.explain(message))
        try:
            return on_deep_stack(work)
        except LibraryPanicError as error:
            raise GrammarError(self.explain(str(error))) from error

    def _compiled(self, vocabulary: LLTokenizer) -> LLMatcher:
        matcher = LLMatcher(vocabulary, self.source, log_level=0, limits=LIMITS)
        matcher.compute_bitmask()  # each copy starts with this done
        if matcher.is_error():
            raise GrammarError(self.explain(matcher.get_error()))
        if self.kind == "json_schema" and is_endless(json.loads(self.source)["grammars"][0]["json_schema"]):
            raise GrammarError(self.explain(ENDLESS))
        return matcher

    def _follow(self, matcher: LLMatcher, vocabulary: LLTokenizer) -> None:
        """Try TRIAL_TOKENS allowed tokens: a grammar too complex to follow mostly fails at the first ones."""
        ends = sum(1 << token_id for token_id in vocabulary.eos_tokens)
        for _ in range(TRIAL_TOKENS):
            allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~ends
            # The lowest id: vocabularies begin with the shortest tokens, which skip no step.
            if not allowed or not matcher.consume_token((allowed & -allowed).bit_length() - 1):
                break
        problem = matcher.get_error()
        if problem and not problem.startswith(DEAD_END):  # the tokenizer may lack a character
            raise GrammarError(self.explain(f"it is too complex to follow: {problem}"))

    def explain(self, problem: str) -> str:
        """Return the library's message in a form for clients."""
        # The rest is the library's own debugging output.
        for mark in ("<state>", "<backtrace>"):
            problem = problem.partition(mark)[0].strip()
        if problem.startswith("panic:"):
            problem = NOT_UNDERSTOOD
        elif problem.startswith(DEAD_END):
            problem = "nothing can match it"
        return f"{self.kind}: {problem}"


def vocabulary_of(
    tokenizer: str, *, tokenizer_size: int, vocab_size: int, end_token_ids: Collection[int]
) -> LLTokenizer:
    """Return the vocabulary that grammars are compiled for; `tokenizer` is the text of a tokenizer.json.

    Raises:
        GrammarError: no grammar can be used with this tokenizer.

    """
    ends = sorted(token_id for token_id in end_token_ids if token_id < tokenizer_size)
    if not ends:
        raise GrammarError("grammar: the checkpoint names no end token, and a grammar needs one")
    try:
        return LLTokenizer(tokenizer, n_vocab=max(tokenizer_size, vocab_size), eos_token=ends)
    except ValueError as error:
        raise GrammarError(f"grammar: this tokenizer cannot be used: {error}") from error


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread with a stack of STACK_BYTES, and return its result.

    Raises:
        LibraryPanicError: Rust panicked, for which pyo3 raises a BaseException that would end a process.

    """
    with ThreadPoolExecutor(1, "grammar") as executor:
        with _stack_size:
            before = threading.stack_size(STACK_BYTES)
            running = executor.submit(work)  # starts the thread
            threading.stack_size(before)
        try:
            return running.result()
        except BaseException as error:
            if type(error).__name__ == PANIC:
                raise LibraryPanicError(NOT_UNDERSTOOD) from error
            raise
