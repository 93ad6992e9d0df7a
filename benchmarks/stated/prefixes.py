"""Measures what kept keys and values save: within a request, and between the turns of conversations."""

import time
from functools import partial

from benchmarks.offline import run_workload
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup, in_turns, ratio, rounded
from benchmarks.workloads import WorkItem, shifted
from worker.engine.engine import Engine

PROMPT, OUTPUT = 256, 48
CONVERSATIONS, TURNS = 8, 5
SYSTEM, QUESTION, ANSWER = 192, 48, 32  # tokens


def kv_cache(setup: Setup) -> dict[str, MeasuredFigure]:
    """Generate a text with the KV cache, and without: each token from a request of its own."""
    engine = setup.engine(enable_prefix_cache=False)
    ids = setup.draw.prompt(PROMPT)[0]

    def start(turn: int) -> tuple[int, ...]:
        return shifted([WorkItem(ids, OUTPUT)], engine.model_info.vocab_size, turn)[0].prompt_ids

    def kept(turn: int) -> float:
        item = WorkItem(start(turn), OUTPUT)
        began = time.perf_counter()
        run_workload(engine, [item])
        return time.perf_counter() - began

    def recomputed(turn: int) -> float:
        known = start(turn)
        began = time.perf_counter()
        for _ in range(OUTPUT):
            known += tuple(run_workload(engine, [WorkItem(known, 1)])[0])
        return time.perf_counter() - began

    seconds = in_turns({"kept": kept, "recomputed": recomputed}, setup.rounds)
    return {"kv_cache": MeasuredFigure(ratio(seconds, "recomputed", "kept"), rounded(seconds))}


def conversations(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run conversations of several turns with and without the prefix cache: the mean latency of a turn."""
    engines = {name: setup.engine(enable_prefix_cache=name == "kept") for name in ("kept", "recomputed")}
    system = setup.draw.prompt(SYSTEM)[0]
    questions = [[setup.draw.prompt(QUESTION)[0] for _ in range(CONVERSATIONS)] for _ in range(TURNS)]
    sides = {name: partial(talk, engine, system, questions) for name, engine in engines.items()}
    seconds = in_turns(sides, setup.rounds)
    stats = engines["kept"].stats
    details = rounded(seconds) | {"prefix_hit_rate": round(stats.cached_tokens / stats.queried_tokens, 3)}
    return {"conversations": MeasuredFigure(1 - 1 / ratio(seconds, "recomputed", "kept"), details)}


def talk(engine: Engine, system: tuple[int, ...], questions: list[list[tuple[int, ...]]], turn: int) -> float:
    """Run all conversations turn by turn, with other tokens in each round; return a turn's mean seconds."""
    vocab_size = engine.model_info.vocab_size
    items = [WorkItem(ids, 1) for ids in (system, *(one for row in questions for one in row))]
    fresh = [item.prompt_ids for item in shifted(items, vocab_size, turn)]
    known = [fresh[0]] * CONVERSATIONS
    began = time.perf_counter()
    for number in range(TURNS):
        asked = fresh[1 + number * CONVERSATIONS :]
        known = [past + asked[place] for place, past in enumerate(known)]
        answers = run_workload(engine, [WorkItem(ids, ANSWER) for ids in known])
        known = [past + tuple(answer) for past, answer in zip(known, answers, strict=True)]
    return (time.perf_counter() - began) / TURNS
