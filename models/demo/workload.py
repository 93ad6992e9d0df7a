"""Writes workload.jsonl: requests with reference answers that the demo model should know, for tuning.

    python -m models.demo.workload

The answers are those of the dialogues that it was trained on.
"""

import json
import random
from pathlib import Path
from typing import Any

from models.demo.dialogue.facts import MODULES, TRUTHS
from models.demo.dialogue.words import CAPITALS, COLOR_OF, DAYS, MONTHS, NUMBER_WORDS, OPPOSITES, SOUNDS

FILE = Path(__file__).with_name("workload.jsonl")
NUM_LINES = 320
MAX_TOKENS = 48
YES_OR_NO = {True: r"[Yy]es.*", False: r"[Nn]o.*"}


def questions() -> list[tuple[str, Any]]:
    """Return questions, each with what the answer is expected to be."""
    found: list[tuple[str, Any]] = []
    for name, use in MODULES.items():
        answer = f"The {name} module {use}."
        asked = ("What does the {} module do?", "What is {}?", "What is the module {} for?", "The {} module")
        found += [(text.format(name), answer) for text in asked]
    for country, capital in CAPITALS.items():
        found.append((f"What is the capital of {country}?", f"The capital of {country} is {capital}."))
        found.append((f"Where is {capital}?", f"{capital} is in {country}."))
    found += [
        (f"What color is {one}?", f"{one[0].upper()}{one[1:]} is {color}.") for one, color in COLOR_OF.items()
    ]
    found += [(f"What does a {one} do?", f"A {one} {sound}.") for one, sound in SOUNDS.items()]
    found += [
        (f"What is the opposite of {one}?", f"The opposite of {one} is {other}.")
        for one, other in OPPOSITES.items()
    ]
    found += [
        (f"Which day comes after {day}?", f"After {day} comes {DAYS[(i + 1) % 7]}.")
        for i, day in enumerate(DAYS)
    ]
    found += [
        (f"Which month comes after {month}?", f"{MONTHS[(i + 1) % 12]}.") for i, month in enumerate(MONTHS)
    ]
    found += [(f"Write {n} as a word.", NUMBER_WORDS[n]) for n in range(1, 21)]
    found += [(text, {"match": "regex", "value": YES_OR_NO[is_true]}) for text, is_true in TRUTHS]
    return found


def lines() -> list[dict[str, Any]]:
    """Return the requests, always the same."""
    found = questions()
    random.Random("workload").shuffle(found)  # noqa: S311
    return [
        {
            "custom_id": f"q{i}",
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "expected": expected,
        }
        for i, (asked, expected) in enumerate(found[:NUM_LINES])
    ]


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in lines()), encoding="utf-8")
