"""Parses `call:name{key:value}` between tags, as Gemma models write calls, into JSON arguments."""

import json
import re
from collections.abc import Callable

from worker.parsing.reader import Asking, Reading, TextReader

# Opening tags of both generations, each with its closing tag and what stands around a text.
DIALECTS = {
    "<start_function_call>": ("<end_function_call>", "<escape>"),
    "<|tool_call>": ("<tool_call|>", '<|"|>'),
}
WORD = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
MAX_DEPTH = 64
Tell = Callable[[str], None]


def parse(reader: TextReader) -> Reading:
    """Tell content and calls."""
    while mark := (yield from reader.copy_until(reader.content, *DIALECTS)):
        closing, quote = DIALECTS[mark]
        reader.hold(mark)
        yield from reader.space()
        name: list[str] = []
        if not (yield from reader.skip("call:")):
            reader.give_up()
            continue
        if (yield from reader.copy_until(name.append, "{", closing)) != "{":
            reader.give_up()
            continue
        reader.put_back(1)
        yield from _value(reader, reader.call("".join(name).strip()), quote, 0)
        yield from reader.space()
        yield from reader.skip(closing)


def _value(reader: TextReader, tell: Tell, quote: str, depth: int) -> Asking:
    """Read a value and tell it as JSON; return False where it is cut off."""
    start = yield from reader.starts("{", "[", quote, '"')
    if start == quote:
        reader.take(len(quote))
        text: list[str] = []
        yield from reader.copy_until(text.append, quote)
        tell(json.dumps("".join(text), ensure_ascii=False))
        return True
    if start == '"':
        return (yield from reader.json_value(tell))
    if start and depth < MAX_DEPTH:
        return (yield from _items(reader, tell, quote, depth))
    word: list[str] = []
    found = yield from reader.copy_until(word.append, ",", "}", "]")
    reader.put_back(len(found))
    text_of_word = "".join(word).strip()
    tell(text_of_word if WORD.fullmatch(text_of_word) else json.dumps(text_of_word, ensure_ascii=False))
    return bool(found)


def _items(reader: TextReader, tell: Tell, quote: str, depth: int) -> Asking:
    """Read an object or a list from its opening bracket to its closing one."""
    opening = reader.take()
    closing = "}" if opening == "{" else "]"
    tell(opening)
    is_first = True
    while True:
        yield from reader.space()
        if (yield from reader.skip(closing)):
            tell(closing)
            return True
        if not is_first:
            if not (yield from reader.skip(",")):
                return False
            tell(",")
            yield from reader.space()
        is_first = False
        if opening == "{" and not (yield from _key(reader, tell, quote)):
            return False
        yield from reader.space()
        if not (yield from _value(reader, tell, quote, depth + 1)):
            return False


def _key(reader: TextReader, tell: Tell, quote: str) -> Asking:
    key: list[str] = []
    if not (yield from reader.copy_until(key.append, ":")):
        return False
    text = "".join(key).strip().removeprefix(quote).removesuffix(quote).strip('"')
    tell(json.dumps(text, ensure_ascii=False) + ":")
    return True
