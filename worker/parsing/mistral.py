"""Parses the calls of Mistral models after `[TOOL_CALLS]`: a JSON list, or a name and its arguments."""

from worker.parsing.reader import Reading, TextReader

OPENING, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def parse(reader: TextReader) -> Reading:
    """Tell content and calls."""
    while mark := (yield from reader.copy_until(reader.content, OPENING)):
        reader.hold(mark)
        yield from reader.space()
        if (yield from reader.starts("[")):
            reader.take()
            yield from _listed(reader)
        elif (yield from reader.starts("{")):
            if not (yield from reader.json_call()):
                reader.give_up()
        else:
            yield from _named(reader)


def _listed(reader: TextReader) -> Reading:
    """Read `{"name": ..., "arguments": {...}}` objects up to the end of their list."""
    while True:
        yield from reader.space()
        if not (yield from reader.json_call()):
            reader.give_up()
            return
        yield from reader.space()
        if not (yield from reader.skip(",")):
            yield from reader.skip("]")
            return


def _named(reader: TextReader) -> Reading:
    """Read a name, perhaps an id, and the arguments."""
    name: list[str] = []
    mark = yield from reader.copy_until(name.append, CALL_ID, ARGUMENTS, "{", OPENING)
    if mark == CALL_ID:
        mark = yield from reader.copy_until(lambda _: None, ARGUMENTS, "{", OPENING)
    if mark == ARGUMENTS:
        yield from reader.space()
        if not (yield from reader.skip("{")):
            mark = ""
    if mark in {"", OPENING}:
        reader.give_up()
        return
    tell = reader.call("".join(name).strip())
    reader.put_back(1)
    yield from reader.json_value(tell)
