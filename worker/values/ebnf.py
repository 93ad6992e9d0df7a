"""Turn an EBNF grammar without recursion into a regular expression, as vLLM's and SGLang's clients send it.

A grammar that is not regular may be ambiguous, and following one can keep the engine busy for minutes
(docs/decisions/0005). Every regular expression has a bound.
"""

import re
from collections.abc import Mapping

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

from worker.values.grammar import MAX_SOURCE_CHARACTERS, GrammarError

ROOT = "root"
# What the parser has kept of a text's escapes, and how each is written in a regular expression.
ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\[uU]([0-9a-fA-F]*)|\\([nrt])|\\(.)|(.)", re.DOTALL)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def to_regex(grammar: str) -> str:
    """Return the regular expression of what `grammar` derives from its rule `root`.

    Raises:
        GrammarError: it is not understood, or one of its rules needs itself.

    """
    # Longer than any regular expression may be, even if every rule is used once.
    if len(grammar) > MAX_SOURCE_CHARACTERS:
        raise GrammarError(f"grammar: has more than {MAX_SOURCE_CHARACTERS} characters")
    try:
        rules = GrammarParser().parse(grammar)
        return _Writer(rules).rule(ROOT)
    except GbnfToLarkError as error:
        raise GrammarError(f'grammar: {error}; write EBNF, such as root ::= "yes" | "no"') from error
    except (IndexError, RecursionError) as error:
        raise GrammarError("grammar: it is not understood, or nested too deeply") from error


class _Writer:
    """Writes rules as regular expressions, each within those that need it."""

    def __init__(self, rules: Mapping[str, RuleNode]) -> None:
        self._rules = rules
        self._open: list[str] = []
        self._known: dict[str, str] = {}

    def rule(self, name: str) -> str:
        if name in self._open:
            raise GrammarError(
                f"grammar: the rule {name!r} needs itself, and rules that do are not supported;"
                " write repetitions with * and +, or send a JSON schema"
            )
        if name not in self._known:
            if name not in self._rules:
                raise GrammarError(f"grammar: there is no rule {name!r}")
            self._open.append(name)
            self._known[name] = self._within(f"(?:{self._write(self._rules[name].alternatives)})")
            self._open.pop()
        return self._known[name]

    def _write(self, node: ASTNode) -> str:
        if isinstance(node, LiteralNode):
            return "".join(map(_character, ESCAPE.finditer(node.value)))
        if isinstance(node, RegexNode):
            return "(?s:.)" if node.rx == "." else node.rx
        if isinstance(node, RuleRefNode):
            return self.rule(node.name)
        if isinstance(node, RepetitionNode):
            most = "" if node.max_times is None else node.max_times
            return f"(?:{self._write(node.node)}){{{node.min_times},{most}}}"
        if isinstance(node, SequenceNode):
            return self._within("".join(map(self._write, node.nodes)))
        assert isinstance(node, AlternativeNode)  # noqa: S101 - the parser makes no other node
        return self._within("(?:" + "|".join(map(self._write, node.alternatives)) + ")")

    @staticmethod
    def _within(pattern: str) -> str:
        if len(pattern) > MAX_SOURCE_CHARACTERS:
            raise GrammarError(
                f"grammar: as a regular expression it has more than {MAX_SOURCE_CHARACTERS} characters"
            )
        return pattern


def _character(found: re.Match[str]) -> str:
    """Return a character of a literal, or its escape, as a code point."""
    byte, code, control, escaped, plain = found.groups()
    if byte or code is not None:
        number = int(byte or code or "0", 16)
    else:
        number = ord(CONTROLS[control] if control else escaped or plain)
    return f"\\x{{{number:x}}}"
