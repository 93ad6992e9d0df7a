"""Writes what the demo model itself goes on with: `python models/demo/answers.py TEXT.jsonl ANSWERS.jsonl`.

Its heads and its draft guess the model's own words, so they learn from these as well. A prompt is a piece of
a line of TEXT, as `text.py` writes it; half of the answers are greedy, half are drawn at temperature 0.7.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from worker.engine.engine import Engine
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.generation import GenerationRequest
from worker.values.sampling import SamplingParams

HERE = Path(__file__).resolve().parent
NUM_ANSWERS = 6_000
CHARACTERS = (40, 400)  # of a prompt
MAX_TOKENS = 160  # of an answer


def prompts(texts: list[str]) -> Iterator[str]:
    """Yield pieces of texts, each from the beginning of a line, always the same ones."""
    rng = random.Random("answers")  # noqa: S311
    while True:
        text = rng.choice(texts)
        start = text.rfind("\n", 0, rng.randrange(len(text))) + 1
        if piece := text[start : start + rng.randint(*CHARACTERS)].strip():
            yield piece


def answers(texts: list[str]) -> Iterator[str]:
    """Yield each prompt with its answer, in the order in which the answers end."""
    engine = Engine(EngineConfig.for_device(model=HERE, device="cpu", dtype="int8"))
    asked = dict(zip(range(NUM_ANSWERS), prompts(texts), strict=False))
    for number, prompt in asked.items():
        params = SamplingParams(temperature=0.7 * (number % 2), seed=number, max_tokens=MAX_TOKENS)
        engine.add(GenerationRequest(number, prompt, params))
    while engine.has_unfinished:
        for done in engine.step().completions:
            if done.error is None:
                yield asked[int(str(done.id))] + done.text


def main() -> None:
    """Write the answers, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("text", type=Path)
    parser.add_argument("answers", type=Path)
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()
    with options.answers.open("w", encoding="utf-8") as out:
        for text in answers([json.loads(line)["text"] for line in lines]):
            out.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    main()
