"""Writes workload.jsonl: requests with reference answers, for tuning.

    python -m models.demo.workload

Each goes on with a place of the held-out text, and is right if its first word is that of the text.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

TEXT, FILE = (Path(__file__).with_name(name) for name in ("heldout.txt", "workload.jsonl"))
NUM_LINES = 320
CHARACTERS = 120  # of a prompt
MAX_TOKENS = 16
WORD = re.compile(r"(?<=\S) ([A-Za-z]{2,})")


def lines() -> list[dict[str, Any]]:
    """Return the requests, always the same."""
    text = TEXT.read_text(encoding="utf-8")
    words = [found for found in WORD.finditer(text) if found.start() >= CHARACTERS]
    chosen = random.Random("workload").sample(words, NUM_LINES)  # noqa: S311
    return [
        {
            "custom_id": f"word-{number}",
            "prompt": text[found.start() - CHARACTERS : found.start()],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "expected": {"match": "regex", "value": rf" ?{found[1]}([^A-Za-z](.|\n)*)?"},
        }
        for number, found in enumerate(chosen)
    ]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in lines()), encoding="utf-8")
