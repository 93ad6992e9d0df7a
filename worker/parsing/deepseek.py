"""Parses the calls of DeepSeek's models: JSON after a name and a mark; of V3 and R1, in a block of code."""

from worker.parsing.reader import Asking, Reading, TextReader

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
CODE, CODE_END = "```json", "```"


def parse(reader: TextReader) -> Reading:
    """Tell content and calls."""
    while mark := (yield from reader.copy_until(reader.content, CALLS, CALL)):
        reader.hold(mark)
        if mark == CALLS:
            yield from reader.space()
            yield from reader.skip(CALL)
        if not (yield from _call(reader)):
            reader.give_up()
            continue
        for closing in (CODE_END, CALL_END, CALLS_END):
            yield from reader.space()
            yield from reader.skip(closing)


def _call(reader: TextReader) -> Asking:
    """Read `name SEPARATOR {...}`, or `function SEPARATOR name` and a block of code; return if it is one."""
    name: list[str] = []
    if (yield from reader.copy_until(name.append, SEPARATOR, CALLS, CALL_END)) != SEPARATOR:
        return False
    yield from reader.space()
    if not (yield from reader.starts("{")):
        name = []
        if not (yield from reader.copy_until(name.append, "\n")):
            return False
        yield from reader.space()
        yield from reader.skip(CODE)
        yield from reader.space()
        if not (yield from reader.starts("{")):
            return False
    tell = reader.call("".join(name).strip())
    yield from reader.json_value(tell)
    return True
