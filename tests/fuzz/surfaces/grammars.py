"""What outputs must be: schemas, expressions, choices, as the door judges and the engine compiles them."""

import json
from functools import cache
from typing import Any

import numpy as np

from tests.fixtures.tiny_llama import BEGIN, END, tiny_tokenizer
from tests.fuzz.chaos import Chaos, nested
from tests.fuzz.surfaces.model import model
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.text.grammar import GrammarCompiler
from worker.engine.text.tokenizer import Tokenizer
from worker.values.grammar import Grammar, GrammarError

SCHEMAS: tuple[Any, ...] = (
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", 2]}},
        "required": ["a"],
    },
    {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "null"}, {"type": "number", "multipleOf": 0.5}], "title": "t"},
    {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": "string", "pattern": "^[a-z]{2,4}$", "format": "date"},
    {"oneOf": [{"const": "a"}, {"const": 7}], "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}, "minProperties": 1},
    {"allOf": [{"type": "integer"}, {"minimum": 0, "exclusiveMaximum": 10**6}]},
)
PATTERNS = (
    "[a-z]+",
    "(a|b)*c",
    "\\d{3}-\\d{4}",
    "(?i)yes|no",
    "^x$",
    "a{0,20}",
    ".*",
    "\\p{L}+",
    "(?:ab){2,}",
    "[^\\n]{1,9}",
    "(a+)+b",
    "\\w{4}\\s\\b",
    "((((a))))",
    "[\\x00-\\x{10ffff}]",
    "(?P<n>a)(?s:.)",
    "a|",
    "(a{9}){9}",
    "(((a{9}){9}){9}){9}",
)
WORDS = (
    *PATTERNS,
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "*",
    "+",
    "?",
    "|",
    "\\",
    "{1000}",
    "{1,}",
    "{99999}",
    "(?=a)",
    "\\1",
    "^",
    "$",
    ".",
)
KEYWORDS = (
    "type",
    "$ref",
    "items",
    "properties",
    "pattern",
    "enum",
    "const",
    "anyOf",
    "not",
    "if",
    "minLength",
    "maxItems",
    "required",
    "format",
    "minimum",
    "multipleOf",
    "additionalProperties",
    "prefixItems",
    "uniqueItems",
    "$id",
)


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(Tokenizer(model()), tiny_tokenizer().get_vocab_size(), (END, BEGIN))


def _schema(chaos: Chaos) -> Any:
    schema = chaos.spoiled(chaos.choice(SCHEMAS))
    if isinstance(schema, dict) and chaos.random() < 0.5:
        word = chaos.choice(KEYWORDS)
        schema[word] = chaos.choice(
            (chaos.value(2), chaos.choice(SCHEMAS), [chaos.choice(SCHEMAS)], chaos.choice(PATTERNS))
        )
    if chaos.random() < 0.02:
        schema = {"type": "object", "properties": {"x": nested(chaos.randrange(300)), "y": schema}}
    return schema


def _check(chaos: Chaos, kind: str, source: Any) -> bool:
    """Judge a grammar at the door; one that passes the engine compiles, and follows for some tokens."""
    try:
        source = json.loads(json.dumps(source))  # as it is stored
        grammar = Grammar.of(kind, source)
        grammar.check(_compiler()._vocabulary)
    except GrammarError as error:
        assert str(error)
        str(error).encode(errors="strict")
        return False
    if chaos.random() < 0.9:
        return True
    try:
        matcher = _compiler().matcher(grammar)
        for _ in range(chaos.randrange(20)):
            bits = np.frombuffer(matcher.allowed()[0], dtype=np.uint8)
            (allowed,) = np.unpackbits(bits, bitorder="little").nonzero()
            if not len(allowed) or matcher.push(int(chaos.choice(allowed))):
                break
    except InvalidRequestError as error:
        assert str(error)
    return True


def schemas(chaos: Chaos) -> bool:
    """Judge a JSON schema."""
    return _check(chaos, "json_schema", _schema(chaos))


def patterns(chaos: Chaos) -> bool:
    """Judge a regular expression."""
    pattern = chaos.choice(PATTERNS) if chaos.random() < 0.2 else chaos.line_of(WORDS)
    return _check(chaos, "regex", pattern)


def choices(chaos: Chaos) -> bool:
    """Judge a list of choices."""
    return _check(chaos, "choice", [chaos.line_of(("yes", "no", "maybe")) for _ in range(chaos.randrange(6))])
