"""Parses the channels of gpt-oss.

Analysis is reasoning, a message to a function is a call, and the rest is content.
"""

import re

from worker.parsing.reader import Reading, TextReader

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END = "<|constrain|>", "<|end|>"
ENDS = (END, "<|call|>", "<|return|>", START, CHANNEL)
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


def parse(reader: TextReader) -> Reading:
    """Tell reasoning, content and calls."""
    mark = yield from reader.starts(START, CHANNEL, " to=")
    while mark:
        header: list[str] = []
        if not (yield from reader.copy_until(header.append, MESSAGE)):
            return  # the output was cut off within a header
        written = "".join(header)
        if mark == CHANNEL and not written.startswith(CHANNEL):
            written = CHANNEL + written
        channel, recipient = CHANNEL_NAME.search(written), RECIPIENT.search(written)
        if recipient is not None:
            arguments = reader.call(recipient[1])
            if (yield from reader.starts("{")):
                yield from reader.json_value(arguments)
                arguments = _ignore
            tell = arguments
        elif channel is not None and channel[1] == "analysis":
            tell = reader.reasoning
        else:
            tell = reader.content
        mark = yield from reader.copy_until(tell, *ENDS)
        if mark and mark not in {START, CHANNEL}:
            mark = (yield from reader.starts(START, CHANNEL)) or mark
    yield from reader.copy_until(reader.content)


def _ignore(_: str) -> None:
    pass
