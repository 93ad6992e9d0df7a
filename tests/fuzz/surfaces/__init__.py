"""Where input of strangers is read.

Each function makes one input from a seed, reads it, judges what comes of it, and returns whether it was
accepted. Whatever it raises is a finding.
"""

from collections.abc import Callable

from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces import bodies, checkpoints, conversations, files, grammars, headers, outputs, tables

Surface = Callable[[Chaos], bool]

# With how many of a thousand inputs each has.
SHARES: dict[Surface, int] = {
    files.lines: 100,
    files.line_json: 70,
    files.gzipped: 50,
    files.texts: 20,
    files.multipart: 80,
    files.intake: 30,
    bodies.submission: 60,
    bodies.waiting: 60,
    bodies.openai: 100,
    bodies.anthropic: 30,
    bodies.tokens: 10,
    bodies.others: 40,
    grammars.schemas: 25,
    grammars.patterns: 25,
    grammars.choices: 10,
    conversations.conversations: 40,
    conversations.chats: 20,
    outputs.outputs: 50,
    headers.ranges: 25,
    headers.windows: 15,
    headers.hosts: 20,
    headers.paths: 10,
    headers.answers: 30,
    headers.addresses: 30,
    headers.seals: 5,
    tables.tables: 10,
    checkpoints.configs: 8,
    checkpoints.weights: 4,
    checkpoints.tokenizers: 3,
}
BY_NAME = {surface.__name__: surface for surface in SHARES}


def run(name: str, seed: str) -> bool:
    """Run one input; the same seed makes the same input."""
    return BY_NAME[name](Chaos(f"{name}/{seed}"))
