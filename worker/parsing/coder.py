"""Parses the XML of Qwen3-Coder's calls, `<function=f><parameter=a>1</parameter></function>`, into JSON."""

import json
import re
from collections.abc import Collection

from worker.parsing import hermes
from worker.parsing.reader import Reading, TextReader

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
NAME = re.compile(r"\s*([\w.-]+)\s*")
# What Python, and people, write for JSON's words.
WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def parse(reader: TextReader, typed: Collection[str]) -> Reading:
    """Tell content and calls. `typed` has the parameters that are no texts, as `function.parameter`."""
    while mark := (yield from reader.copy_until(reader.content, hermes.OPENING, FUNCTION)):
        reader.hold(mark)
        if mark == hermes.OPENING:
            yield from reader.space()
            if not (yield from reader.skip(FUNCTION)):
                yield from hermes.parse_call(reader)
                continue
        written: list[str] = []
        yield from reader.copy_until(written.append, ">")
        name = NAME.fullmatch("".join(written))
        if name is None:
            reader.give_up()
            continue
        yield from _arguments(reader, name[1], typed)
        yield from reader.space()
        yield from reader.skip(hermes.CLOSING)


def _arguments(reader: TextReader, name: str, typed: Collection[str]) -> Reading:
    """Read the parameters of a call up to its end; an output that was cut off leaves its JSON open."""
    tell = reader.call(name)
    tell("{")
    before = ""
    while True:
        yield from reader.space()
        if not (yield from reader.skip(PARAMETER)):
            if (yield from reader.has_more()):
                tell("}")
            yield from reader.skip(FUNCTION_END)
            return
        key: list[str] = []
        if not (yield from reader.copy_until(key.append, ">")):
            return
        known_as = "".join(key).strip()
        tell(f"{before}{json.dumps(known_as, ensure_ascii=False)}: ")
        before = ", "
        value: list[str] = []
        mark = yield from reader.copy_until(
            value.append, PARAMETER_END, f"\n{PARAMETER}", f"\n{FUNCTION_END}"
        )
        text = "".join(value).removeprefix("\n").removesuffix("\n")
        tell(_to_json(text, is_typed=f"{name}.{known_as}" in typed))
        if mark != PARAMETER_END:
            reader.put_back(len(mark))


def _to_json(text: str, *, is_typed: bool) -> str:
    """Return a value as JSON; one that should be no text, and is no JSON either, stays a text."""
    if is_typed:
        word = text.strip()
        try:
            json.loads(word, parse_constant=_refuse)
        except (ValueError, RecursionError):
            word = WORDS.get(word.lower(), "")
        if word:
            return word
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
