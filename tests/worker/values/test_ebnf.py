"""Grammars as the documentation of vLLM and SGLang writes them."""

import re

import pytest

from worker.values.ebnf import to_regex
from worker.values.grammar import GrammarError

SQL = r"""
# one statement
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= [1-9] [0-9]* " "?
"""
CITIES = """root ::= city | description
city ::= "London" | "Paris"
description ::= city " is " ("the capital of " country){1,2}
country ::= "England" | "France"
"""


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        (
            SQL,
            ["SELECT col_1  from table_2  where col_2 = 10 ", "SELECT col_2  from table_1  where col_1 = 7"],
            ["SELECT col_3  from table_2  where col_2 = 1", "SELECT col_1  from table_2  where col_2 = 01"],
        ),
        (
            CITIES,
            [
                "London",
                "Paris is the capital of France",
                "Paris is the capital of Francethe capital of England",
            ],
            ["Rome", "Paris is ", "France"],
        ),
        (r'root ::= "a.\n\"" "\u00e9" . [^"\\]+', ['a.\n"é\n]]', 'a.\n"éx['], ['ab\n"é..', 'a.\n"éx"']),
        ('root ::= "" | "x"+', ["", "xxx"], ["y"]),
    ],
)
def test_a_grammar_becomes_a_regular_expression(grammar: str, taken: list[str], refused: list[str]) -> None:
    # Python writes a code point as \uXXXX where Rust writes \x{...}.
    pattern = re.sub(r"\\x\{(\w+)\}", lambda found: f"\\u{int(found[1], 16):04x}", to_regex(grammar))
    assert [text for text in taken if not re.fullmatch(pattern, text)] == []
    assert [text for text in refused if re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('root ::= "(" root ")" | ""', "the rule 'root' needs itself"),
        ('root ::= a\na ::= "x" b\nb ::= a | "y"', "the rule 'a' needs itself"),
        ("root ::= nope", "there is no rule 'nope'"),
        ('first ::= "a"', "there is no rule 'root'"),
        ('?start: "yes" | "no"', "Expected name"),
        ('root ::= "a', "Unexpected end"),
        ('root ::= "\\', "not understood"),
        ("", "there is no rule 'root'"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
        (
            "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"',
            "more",
        ),
        ("root ::= " + '"a" ' * 60_000, "more than 131072 characters"),
    ],
)
def test_a_grammar_that_cannot_be_followed_says_why(grammar: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        to_regex(grammar)
