"""What an output must be: JSON by a schema, a regular expression, one of a list. Knows no tensors.

The door refuses a bad one early; the engine compiles it for its tokens (worker/engine/grammar.py).
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from llguidance import LLMatcher, LLParserLimits

# Between the tokens of JSON. One space, because a model that is unsure writes all the white space it may.
JSON_WHITESPACE = " ?"
# The library recurses along references and overflows a common stack, which kills the process: a thousand
# definitions that refer each to the next do it. At most 400 bytes of stack for each of the source were seen.
MAX_SOURCE_CHARACTERS = 1 << 17
STACK_BYTES = 1 << 28  # of address space; only what is touched is memory
# A seventh of the library's own, with which `((((a)))){1000}{1000}` took 220 MB and a second to be refused:
# now 40 MB and 0.1 s. A chain of 2,000 definitions still fits.
LIMITS = LLParserLimits(initial_lexer_fuel=150_000)


class GrammarError(ValueError):
    """A grammar that cannot be compiled; the message begins with its kind."""


class LibraryPanicError(Exception):
    """The library gave up on a grammar in a way it did not mean to."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole output must be; made by one of the methods below, compiled by the engine.

    They raise GrammarError for what is not even well-formed text; `check` judges the rest.
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
        """Accept what `pattern` matches as a whole, by the syntax of Rust's regex without look-around."""
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
    def of(cls, kind: str, source: Any) -> Self:
        """Make the grammar of a stored output format: `kind` names one of the methods above."""
        if kind == "json_object":
            return cls.json_object()
        make = {"json_schema": cls.json_schema, "regex": cls.regex, "choice": cls.choice}[kind]
        return make(source)

    def check(self) -> None:
        """Raise GrammarError, with the library's message, unless this can be compiled."""
        try:
            problem = self.excess or on_deep_stack(self._validate)
        except LibraryPanicError as error:
            problem = str(error)
        if problem:
            raise GrammarError(self.explain(problem))

    def _validate(self) -> str:
        return LLMatcher.validate_grammar(self.source, limits=LIMITS)

    @property
    def excess(self) -> str:
        """What is wrong with its length, or nothing."""
        num_characters = len(self.source)
        if num_characters <= MAX_SOURCE_CHARACTERS:
            return ""
        return f"{num_characters} characters are over the limit of {MAX_SOURCE_CHARACTERS}"

    def explain(self, problem: str) -> str:
        """Return the library's message as a client can read it."""
        # What follows is the library's own debugging.
        for mark in ("<state>", "<backtrace>"):
            problem = problem.partition(mark)[0].strip()
        return f"{self.kind}: {NOT_UNDERSTOOD if problem.startswith('panic:') else problem}"


NOT_UNDERSTOOD = "the grammar is not understood"
PANIC = "PanicException"  # pyo3 does not export it
_stack_size = threading.Lock()
Result = TypeVar("Result")


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """Run `work` on a thread of its own that has STACK_BYTES, and return its result.

    Raises:
        LibraryPanicError: Rust panicked, which Python is told by a BaseException that would end a process.

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
