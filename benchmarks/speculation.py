r"""Measures what guessed tokens gain: each case with and without them, in turns, on held-out text.

    python -m benchmarks.speculation [--model DIR] [--draft DIR] [--device DEVICE] [--dtype DTYPE] \
        [--threads N] [--rounds N] [--cases NAME ...] [--apart]

A case is a few requests that run together; each round runs it with other text, once with guesses and once
without, on one engine. Its number is the median over rounds of seconds without guesses by seconds with them.
With --apart, each round also runs it with the guesses of each proposer alone: the lookup (with what grammars
force), the heads, the draft. It has a line and a number of its own.

- tail: four long requests are left of a batch. makespan: a whole batch of 60 short and four long ones.
- interactive: one request, greedy; sampled: one at temperature 0.7.
- full_batch: 64 requests, greedy; full_sampled: at temperature 0.7.
- long_context: one request behind 8,000 tokens, by stretched rotary positions where the checkpoint has fewer.
  Only the time after its first token counts.
- templated: four at a time, sixteen requests of one job fill the same form.

Requests decode a fixed number of tokens, except in templated. A line for each case says why its ratio is what
it is: "steps" is the share of Steps that are left, "step_time" how much longer one of them takes. "cpu_ratio"
is the ratio of processor time, for a machine with other work. "rounds" and "cpu_rounds" are the ratios of all
rounds: how far they lie apart says how far the median may be trusted. The last line is JSON: the ratio of
each case, and under "acceptance" the share of guessed tokens that were right, by proposer; under "apart", if
it was asked for, the ratios of each proposer alone.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from worker.engine.engine import Engine
from worker.engine.requests.config import DEVICES, DTYPES, EngineConfig
from worker.engine.requests.generation import GenerationRequest
from worker.engine.running.draft_model import DraftModel
from worker.engine.running.medusa_guesses import MedusaGuesses
from worker.engine.speculation.lookup import LookupProposer
from worker.engine.speculation.speculation import Speculation
from worker.engine.speculation.waiting import Waiting
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams

DEMO = Path(__file__).parent.parent / "models" / "demo"
LONG_TOKENS = 8_192
FORM = {
    "type": "object",
    "properties": {
        "function_name": {"type": "string", "pattern": "^[a-z_]{3,16}$"},
        "return_type": {"enum": ["None", "int", "str", "bool", "object"]},
        "raises_exceptions": {"type": "boolean"},
        "short_description": {"type": "string", "pattern": "^[A-Z][a-z ]{10,40}\\.$"},
        "number_of_arguments": {"type": "integer", "minimum": 0, "maximum": 9},
        "is_deprecated_since_version": {"enum": [None, "3.8", "3.9", "3.10"]},
    },
    "required": [
        "function_name",
        "return_type",
        "raises_exceptions",
        "short_description",
        "number_of_arguments",
        "is_deprecated_since_version",
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Case:
    """Requests that run together, `at_once` at a time; only decoding is timed if `is_decode_only`."""

    max_tokens: tuple[int, ...]  # of each request
    prompt_tokens: int
    params: SamplingParams
    at_once: int = 64
    is_decode_only: bool = False


GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, seed=1, ignore_eos=True)
IN_FORM = SamplingParams(
    temperature=0.7, seed=1, format=OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(FORM))
)
CASES = {
    "tail": Case((256,) * 4, 128, GREEDY),
    "makespan": Case((24,) * 60 + (512,) * 4, 64, GREEDY),
    "interactive": Case((384,), 128, GREEDY),
    "sampled": Case((384,), 128, SAMPLED),
    "full_batch": Case((96,) * 64, 64, GREEDY),
    "full_sampled": Case((96,) * 64, 64, SAMPLED),
    "long_context": Case((128,), 8_000, GREEDY, is_decode_only=True),
    "templated": Case((200,) * 16, 96, IN_FORM, at_once=4),
}
PROPOSERS = ("lookup", "grammar", "draft", "medusa")


def stretched(model: Path, directory: Path) -> Path:
    """Copy a checkpoint with links and with rotary positions stretched to LONG_TOKENS; return the copy."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    most = config["max_position_embeddings"]
    if most >= LONG_TOKENS:
        return model
    for file in model.iterdir():
        if file.suffix in {".safetensors", ".json"} and file.name != "config.json":
            (directory / file.name).symlink_to(file.resolve())
    config |= {
        "max_position_embeddings": LONG_TOKENS,
        "rope_scaling": {"rope_type": "linear", "factor": LONG_TOKENS / most},
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def prompts(case: Case, text_ids: Sequence[int], begin: int, turn: int) -> list[tuple[int, ...]]:
    """Return the prompts of one round: pieces of the text that no other round has, as far as it reaches."""
    step = max(1, (len(text_ids) - case.prompt_tokens) // 97)
    count = len(case.max_tokens)
    starts = ((turn * count + index) * 31 % 97 * step for index in range(count))
    return [(begin, *text_ids[start : start + case.prompt_tokens - 1]) for start in starts]


def run(engine: Engine, case: Case, given: Sequence[tuple[int, ...]], job: str) -> tuple[float, float]:
    """Run a case; return its seconds, and those that a processor worked for it."""
    began, first = now(), None
    for start in range(0, len(given), case.at_once):
        for index, prompt in enumerate(given[start : start + case.at_once], start):
            params = replace(case.params, max_tokens=case.max_tokens[index])
            engine.add(GenerationRequest(f"{job}-{index}", prompt, params, job=job))
        while engine.has_unfinished:
            output = engine.step()
            if output.num_new_tokens and not first:
                first = now()
    ended = now()
    start_at = first if case.is_decode_only and first is not None else began
    return ended[0] - start_at[0], ended[1] - start_at[1]


def now() -> tuple[float, float]:
    """Return the time, and the processor time of this process."""
    return time.perf_counter(), time.process_time()


def measure(
    config: dict[str, Any], case: Case, text_ids: Sequence[int], begin: int, rounds: int, *, apart: bool
) -> dict[str, tuple[dict[str, Any], Counter[str]]]:
    """Return the median ratio of a case with what is behind it, and the guessed and right tokens.

    They are under "all", and if it is measured `apart`, under the name of each proposer, too.
    """
    # One Engine for all: two differ by some percent in speed, by where their memory lies.
    engine = Engine(EngineConfig.for_device(**config, speculates=True, enable_prefix_cache=False))
    pool, stats = engine._scheduler.block_pool, engine.stats  # noqa: SLF001
    heads, waits = engine._runner.medusa, engine._speculation._waiting is not None  # noqa: SLF001
    proposers = {name_of(one): one for one in engine._speculation.proposers}  # noqa: SLF001
    chosen = {"none": [], "all": list(proposers.values())}
    if apart:
        chosen |= {name: [one] for name, one in proposers.items()}
    deciding = {
        name: Speculation(
            some,
            pool,
            stats,
            block_size=engine.config.block_size,
            waiting=Waiting() if waits and some else None,
        )
        for name, some in chosen.items()
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    num_steps, counts = Counter[str](), {name: Counter[str]() for name in chosen}
    fields = [f"{one}_{what}_tokens" for one in PROPOSERS for what in ("guessed", "right")]
    for turn in range(rounds + 1):
        given = prompts(case, text_ids, begin, turn)
        order = list(chosen)
        start = turn % len(order)
        for name in order[start:] + order[:start]:
            engine._speculation = deciding[name]  # noqa: SLF001
            engine._runner.medusa = heads if heads in chosen[name] else None  # noqa: SLF001
            before = {field: getattr(stats, field) for field in ("steps", *fields)}
            found = run(engine, case, given, f"job {turn}, {name}")
            counts[name].update({field: getattr(stats, field) - before[field] for field in fields})
            if turn:  # the first compiles, and learns what Steps cost
                taken[name].append(found)
                num_steps[name] += stats.steps - before["steps"]
    return {
        name: (_numbers(taken["none"], taken[name], num_steps[name] / num_steps["none"]), counts[name])
        for name in chosen
        if name != "none"
    }


def name_of(proposer: object) -> str:
    """Return the name that a proposer's tokens are counted under."""
    return {LookupProposer: "lookup", DraftModel: "draft", MedusaGuesses: "medusa"}[type(proposer)]


def _numbers(
    without: Sequence[tuple[float, float]], with_them: Sequence[tuple[float, float]], steps: float
) -> dict[str, Any]:
    """Return the median ratios of paired runs with what is behind them; `steps` is the share that is left."""
    ratios, cpu_ratios = (
        [one[clock] / other[clock] for one, other in zip(without, with_them, strict=True)] for clock in (0, 1)
    )
    ratio = statistics.median(ratios)
    return {
        "ratio": round(ratio, 3),
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
        "rounds": [round(one, 2) for one in ratios],
        "cpu_rounds": [round(one, 2) for one in cpu_ratios],
        "without_s": round(statistics.median(seconds for seconds, _ in without), 4),
        "with_s": round(statistics.median(seconds for seconds, _ in with_them), 4),
        "steps": round(steps, 3),
        "step_time": round(1 / (ratio * steps), 3),
    }


def acceptance(counts: Counter[str]) -> dict[str, float | None]:
    """Return the share of each proposer's tokens that were right; None: it guessed none."""
    return {
        one: round(counts[f"{one}_right_tokens"] / guessed, 3) if guessed else None
        for one in PROPOSERS
        for guessed in [counts[f"{one}_guessed_tokens"]]
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=DEMO, help="default: the demo model")
    parser.add_argument("--draft", type=Path, default=None, help="draft model; default: none")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="int8")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--apart", action="store_true", help="measure each proposer alone, too")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    text = (DEMO / "heldout.txt").read_text(encoding="utf-8")
    text_ids = tokenizer.encode(text, add_special_tokens=False).ids
    begin = json.loads((options.model / "config.json").read_text(encoding="utf-8"))["bos_token_id"]
    found: dict[str, Any] = {}
    apart: dict[str, dict[str, float]] = {}  # by proposer, then by case
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases:
            case = CASES[name]
            config = {"device": options.device, "dtype": options.dtype, "num_threads": options.threads}
            config |= {"model": options.model, "draft_model": options.draft}
            if name == "long_context":
                config["model"] = stretched(options.model, Path(folder))
            sides = measure(config, case, text_ids, begin, options.rounds, apart=options.apart)
            for side, (numbers, guesses) in sides.items():
                label = name if side == "all" else f"{name}, {side} alone"
                print(f"{label}: {json.dumps(numbers | acceptance(guesses))}", flush=True)
                (found if side == "all" else apart.setdefault(side, {}))[name] = numbers["ratio"]
            counts += sides["all"][1]
    if options.apart:
        found["apart"] = apart
    print(json.dumps(found | {"acceptance": acceptance(counts)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
