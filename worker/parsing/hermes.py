"""Parses `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write calls."""

from worker.parsing.reader import Reading, TextReader

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def parse(reader: TextReader) -> Reading:
    """Tell content and calls."""
    while mark := (yield from reader.copy_until(reader.content, OPENING)):
        reader.hold(mark)
        yield from reader.space()
        yield from parse_call(reader)


def parse_call(reader: TextReader) -> Reading:
    """Read what follows the mark of a call, which is content if it is none."""
    if not (yield from reader.json_call()):
        reader.give_up()
        return
    yield from reader.space()
    yield from reader.skip(CLOSING)
