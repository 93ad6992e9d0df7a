"""Parses the reasoning that a model writes before its answer."""

from worker.parsing.reader import Reading, TextReader
from worker.values.thinking import Thinking


def parse(reader: TextReader, thinking: Thinking) -> Reading:
    """Tell reasoning, without the marks and the white space around it, if the text begins with any."""
    reader.hold()
    space = yield from reader.space()
    has_mark = yield from reader.skip(thinking.opening)
    if not (has_mark or thinking.is_open):
        reader.put_back(len(space))
        reader.release()
        return
    reader.release()
    yield from reader.space()
    space = ""

    def tell(text: str) -> None:
        nonlocal space
        known = space + text
        kept = known.rstrip()
        space = known[len(kept) :]
        if kept:
            reader.reasoning(kept)

    yield from reader.copy_until(tell, thinking.closing)
    yield from reader.space()
