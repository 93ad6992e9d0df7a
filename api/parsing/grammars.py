"""Writes grammars that hold a model to its family's form of tool calls, as Lark source for llguidance."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.parsing import deepseek, gemma, harmony, hermes, mistral
from worker.values.grammar import JSON_WHITESPACE
from worker.values.parsing import Family

# Keywords beside which `additionalProperties: false` would refuse what the schema allows.
COMPOSING = {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "unevaluatedProperties"}
# Families whose calls no grammar can hold to a schema, with the marks that begin them.
WITHOUT_GRAMMAR: Mapping[Family, Collection[str]] = {
    Family.CODER: (hermes.OPENING,),
    Family.DEEPSEEK: (deepseek.CALLS,),
    Family.GEMMA: tuple(gemma.DIALECTS),
    Family.NONE: (),
}
ANY_OBJECT = {"type": "object"}
TEXT = r"/(.|\n)*/"  # a special token is never part of it
NO_OBJECT = r"/\s*([^{\s](.|\n)*)?/"


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that may be called: its name, its arguments' JSON schema, and whether calls must fit it."""

    name: str
    schema: Mapping[str, Any]
    is_strict: bool


@dataclass(frozen=True, slots=True)
class _Form:
    """The way in which a family writes calls, as parts of Lark rules."""

    opening: str  # the mark of a call, if there is one
    to_prefix: Callable[[str], str]  # from a function's name to what stands before its arguments
    suffix: str = ""
    rest: str = "body"  # what follows the mark
    separator: str = '""'
    is_single: bool = False  # no further call can follow


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Grammars of calls of some tools, in a family's form.

    `special` has the ids of the checkpoint's special tokens: in an output, the marks among them are these
    tokens, and never the same characters as text.
    """

    family: Family
    tools: Sequence[CallableTool]
    special: Mapping[str, int]
    is_parallel: bool

    def forced(self) -> str:
        """Return a grammar of calls only, at least one, whose arguments fit their schemas."""
        return self._source(f"{self._before()} calls", is_held=lambda _: True)

    def offered(self, content: str | None = None) -> str | None:
        """Return a grammar of content or calls; None if any text is allowed.

        `content` is a rule that content must fit. Arguments must fit the schemas of strict tools, but where
        the family does not write them as JSON, they are free.
        """
        is_json = self.family not in WITHOUT_GRAMMAR
        if content is None and not (is_json and any(tool.is_strict for tool in self.tools)):
            return None
        if self.family is Family.HARMONY:
            channel, message = self._mark(harmony.CHANNEL), self._mark(harmony.MESSAGE)
            start = f'{self._before()} ({channel} "final" {message} {content or "text"} | calls)'
        elif not is_json:
            marks = WITHOUT_GRAMMAR[self.family]
            start = " | ".join([content or "text", *(f"{self._mark(mark)} text" for mark in marks)])
        elif content is not None:
            start = f"{content} | calls"
        elif self.family is Family.LLAMA:
            start = f"{NO_OBJECT} | calls"
        else:
            start = "told_call* text" if self.is_parallel else "text | told_call"
        return self._source(start, is_held=lambda tool: tool.is_strict)

    def _source(self, start: str, *, is_held: Callable[[CallableTool], bool]) -> str:
        form = self._form()
        is_repeated = self.is_parallel and not form.is_single
        rules = {
            "start": start,
            "text": "TEXT",
            "TEXT": TEXT,
            "calls": f"call ({form.separator} call)*" if is_repeated else "call",
            "call": f"{form.opening} {form.rest}",
            "told_call": f"told {form.rest}",
            "body": " | ".join(f"body_{i}" for i in range(len(self.tools))),
        }
        if form.opening.startswith("<"):
            rules["told"] = f"TEXT {form.opening}"
        else:
            rules["told[lazy]"] = f"TEXT {form.opening}"
        for i, tool in enumerate(self.tools):
            schema = _closed(tool.schema) if is_held(tool) else ANY_OBJECT
            options = {"whitespace_pattern": JSON_WHITESPACE, "lenient": not tool.is_strict}
            rules[f"body_{i}"] = f"{form.to_prefix(tool.name)} arguments_{i} {form.suffix}"
            rules[f"arguments_{i}"] = json_rule({**schema, "x-guidance": options})
        return "%llguidance {}\n" + "".join(f"{name}: {rule}\n" for name, rule in rules.items())

    def _form(self) -> _Form:
        match self.family:
            case Family.LLAMA:
                return _Form("", _named("parameters"), '"}"', separator='"; "')
            case Family.MISTRAL if mistral.ARGUMENTS in self.special:
                arguments = self._mark(mistral.ARGUMENTS)
                return _Form(self._mark(mistral.OPENING), lambda name: f'"{name}" {arguments}')
            case Family.MISTRAL:
                rest = '" "? "[" body (", " body)* "]"' if self.is_parallel else '" "? "[" body "]"'
                return _Form(self._mark(mistral.OPENING), _named("arguments"), '"}"', rest, is_single=True)
            case Family.HARMONY:
                to, json_message = (
                    '"commentary to=functions.',
                    f'{self._mark(harmony.CONSTRAIN)} "json" {self._mark(harmony.MESSAGE)}',
                )
                return _Form(
                    self._mark(harmony.CHANNEL),
                    lambda name: f'{to}{name} " {json_message}',
                    is_single=True,
                )
        closing = self._mark(hermes.CLOSING)
        return _Form(
            self._mark(hermes.OPENING),
            _named("arguments"),
            '"}"',
            rf'"\n"? body "\n"? {closing}',
            separator=r'"\n"',
        )

    def _before(self) -> str:
        """Return what may stand before all calls: gpt-oss thinks, and speaks, in messages of their own."""
        if self.family is not Family.HARMONY or harmony.END not in self.special:
            return ""
        channel, message, end, start = map(
            self._mark, (harmony.CHANNEL, harmony.MESSAGE, harmony.END, harmony.START)
        )
        return f'({channel} ("analysis" | "commentary") {message} text {end} {start} "assistant")*'

    def _mark(self, text: str) -> str:
        return f"<[{self.special[text]}]>" if text in self.special else json.dumps(text)


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the part of a Lark rule that JSON of a schema fits."""
    return f"%json {json.dumps(schema)}"


def _named(key: str) -> Callable[[str], str]:
    return lambda name: json.dumps(f'{{"name": "{name}", "{key}": ')


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's schema that allows no property that it does not name, unless it says otherwise.

    A model that is unsure would invent properties without end.
    """
    closed = {**ANY_OBJECT, **schema}
    if closed.get("properties") and closed.keys().isdisjoint(COMPOSING):
        closed.setdefault("additionalProperties", False)
    return closed
