"""Parses `{"name": ..., "parameters": {...}}`, as Llama 3 models write calls, at the start or after a tag."""

from collections.abc import Collection

from worker.parsing.reader import Reading, TextReader

TAG = "<|python_tag|>"


def parse(reader: TextReader, names: Collection[str]) -> Reading:
    """Tell content and calls. A JSON object that names none of `names` is content."""
    reader.hold()
    yield from reader.space()
    if (yield from reader.starts("{")):
        yield from _calls(reader, names)
    reader.give_up()
    while mark := (yield from reader.copy_until(reader.content, TAG)):
        reader.hold(mark)
        yield from _calls(reader, names)


def _calls(reader: TextReader, names: Collection[str]) -> Reading:
    """Read calls that semicolons part."""
    while True:
        yield from reader.space()
        if not (yield from reader.json_call(names)):
            reader.give_up()
            return
        reader.hold()
        yield from reader.space()
        yield from reader.skip(";")
        yield from reader.space()
        if not (yield from reader.starts("{")):
            reader.give_up()
            return
