"""Has a model judge which of two outputs is the better answer."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256

from api.cli.comparing.served import Served

AT_ONCE = 8  # requests to the judge
MAX_TOKENS = 1024  # a judge may think first
INSTRUCTION = """Two answers were given to the request below. Say which one is better: more correct, more \
complete, and closer to what was asked for. Length and style alone do not make an answer better. If neither \
is better, say tie.

Request:
{question}

Answer A:
{a}

Answer B:
{b}

Reply with JSON: {{"better": "A"}}, {{"better": "B"}} or {{"better": "tie"}}."""
SCHEMA = {
    "type": "object",
    "properties": {"better": {"enum": ["A", "B", "tie"]}},
    "required": ["better"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A request's outputs under A and B: None if it failed."""

    question: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Scores of A's and B's outputs in the order of requests: 1 and 0, 0 and 1, or 0.5 each for a tie."""

    scores_a: list[float]
    scores_b: list[float]
    num_asked: int  # pairs that differ and were both answered
    num_unclear: int  # of these, those on which the judge's two answers contradict each other or say nothing


def choose(names: Sequence[str], most: int) -> list[str]:
    """Return at most `most` names: the same ones for the same names, whatever their order."""
    return sorted(names, key=lambda name: sha256(name.encode()).digest())[:most]


def judge_outputs(served: Served, pairs: Sequence[Judged]) -> Judgement:
    """Have a model judge pairs, each in both orders, as models favour one place.

    A side wins if the judge names it both times. A failed request loses to one that did not fail, unasked.
    Raises RefusedError or TransportError.
    """
    places = [
        place
        for place, pair in enumerate(pairs)
        if pair.a is not None and pair.b is not None and pair.a != pair.b
    ]
    prompts = [
        INSTRUCTION.format(question=pair.question, a=first, b=second)
        for pair in (pairs[place] for place in places)
        for first, second in ((pair.a, pair.b), (pair.b, pair.a))
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda prompt: _ask(served, prompt), prompts))
    wins = [_win(first, swapped) for first, swapped in zip(answers[::2], answers[1::2], strict=True)]
    scores = [float((pair.b is not None) - (pair.a is not None)) for pair in pairs]
    for place, win in zip(places, wins, strict=True):
        scores[place] = win or 0.0
    return Judgement(
        [(1 - score) / 2 for score in scores],
        [(1 + score) / 2 for score in scores],
        len(places),
        sum(win is None for win in wins),
    )


def _win(first: str | None, swapped: str | None) -> float | None:
    """Return 1 if B is better in both orders, -1 if A is, 0 for a tie; None if nothing follows."""
    return {("B", "A"): 1.0, ("A", "B"): -1.0, ("tie", "tie"): 0.0}.get((first or "", swapped or ""))


def _ask(served: Served, prompt: str) -> str | None:
    """Return what the judge says: A, B or tie; None if it says something else."""
    answer = served.call(
        "chat/completions",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=MAX_TOKENS,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "judgement", "schema": SCHEMA, "strict": True},
        },
    )
    try:
        said = json.loads(answer["choices"][0]["message"]["content"])["better"]
    except (LookupError, TypeError, ValueError):
        return None
    return said if said in {"A", "B", "tie"} else None
