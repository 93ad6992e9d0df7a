"""Writes what the demo model's heads and its draft learn from: `python models/demo/text.py FILE.jsonl`.

The text is what the model itself learned, in any order: modules, snippets, prose and conversations, never the
held-out text. The same Python writes the same text.
"""

import argparse
import json
import random
from pathlib import Path

from corpus import build
from dialogue.mix import BOS, EOS, Material, conversation

NUM_CONVERSATIONS = 6_000


def documents() -> list[str]:
    """Return the text of every document, shuffled, without the tokens that begin and end it."""
    corpus = build()
    material = Material.of(corpus.snippets, corpus.prose)
    talks = [
        "".join(part.text for part in conversation(number, material).parts())
        for number in range(NUM_CONVERSATIONS)
    ]
    texts = [
        *corpus.files,
        *corpus.snippets,
        *corpus.prose,
        *(talk.removeprefix(BOS).removesuffix(EOS) for talk in talks),
    ]
    random.Random("text").shuffle(texts)  # noqa: S311
    return texts


def main() -> None:
    """Write the documents, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in documents())


if __name__ == "__main__":
    main()
