r"""Measures what guessed tokens gain: each case with and without them, in turns, on held-out text.

    python -m benchmarks.speculation [--model DIR] [--draft DIR] [--dtype DTYPE] [--threads N] \
        [--rounds N] [--cases NAME ...]

A case is a few requests that run together; each round runs it with other text on two engines, one of which
guesses. Its number is the median over rounds of seconds without guesses by seconds with them.

- tail: four long requests are left of a batch. interactive: one request, greedy; sampled: one at temperature
  0.7. full_batch: 64 requests.
- long_context: one request behind 8,000 tokens, by stretched rotary positions where the checkpoint has fewer.
  Only the time after its first token counts.
- templated: four at a time, sixteen requests of one job fill the same form.

Requests decode a fixed number of tokens, except in templated. The last line is JSON: the ratio of each case,
and under "acceptance" the share of guessed tokens that were right.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from worker.engine.engine import Engine
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.generation import GenerationRequest
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

    count: int
    prompt_tokens: int
    params: SamplingParams
    at_once: int = 64
    is_decode_only: bool = False


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


CASES = {
    "tail": Case(4, 128, _greedy(256)),
    "interactive": Case(1, 128, _greedy(384)),
    "sampled": Case(1, 128, SamplingParams(max_tokens=384, temperature=0.7, seed=1, ignore_eos=True)),
    "full_batch": Case(64, 64, _greedy(96)),
    "long_context": Case(1, 8_000, _greedy(128), is_decode_only=True),
    "templated": Case(
        16,
        96,
        SamplingParams(
            max_tokens=200,
            temperature=0.7,
            seed=1,
            format=OutputFormat(FormatKind.JSON_SCHEMA, json.dumps(FORM)),
        ),
        at_once=4,
    ),
}


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


def prompts(case: Case, text_ids: Sequence[int], turn: int) -> list[tuple[int, ...]]:
    """Return the prompts of one round: pieces of the text that no other round has, as far as it reaches."""
    step = max(1, (len(text_ids) - case.prompt_tokens) // 97)
    starts = ((turn * case.count + index) * 31 % 97 * step for index in range(case.count))
    return [(0, *text_ids[start : start + case.prompt_tokens - 1]) for start in starts]


def run(engine: Engine, case: Case, given: Sequence[tuple[int, ...]], job: str) -> float:
    """Run a case; return its seconds."""
    began, first = time.perf_counter(), 0.0
    for start in range(0, len(given), case.at_once):
        for index, prompt in enumerate(given[start : start + case.at_once], start):
            engine.add(GenerationRequest(f"{job}-{index}", prompt, case.params, job=job))
        while engine.has_unfinished:
            output = engine.step()
            if output.num_new_tokens and not first:
                first = time.perf_counter()
    ended = time.perf_counter()
    return ended - (first if case.is_decode_only else began)


def measure(config: dict[str, Any], case: Case, text_ids: Sequence[int], rounds: int) -> dict[str, float]:
    """Return the median ratio of a case, the seconds behind it, and the share of guesses that were right."""
    engines = {
        speculates: Engine(EngineConfig(**config, speculates=speculates, enable_prefix_cache=False))
        for speculates in (False, True)
    }
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds + 1):
        given = prompts(case, text_ids, turn)
        order = (False, True) if turn % 2 else (True, False)
        for speculates in order:
            taken = run(engines[speculates], case, given, f"job {turn}")
            if turn:  # the first compiles, and learns what Steps cost
                seconds[speculates].append(taken)
    stats = engines[True].stats
    pairs = zip(seconds[False], seconds[True], strict=True)
    return {
        "ratio": round(statistics.median(without / with_them for without, with_them in pairs), 3),
        "without_s": round(statistics.median(seconds[False]), 4),
        "with_s": round(statistics.median(seconds[True]), 4),
        "steps": stats.steps / engines[False].stats.steps,
        "guessed": stats.lookup_guessed_tokens + stats.draft_guessed_tokens,
        "right": stats.lookup_right_tokens + stats.draft_right_tokens,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=DEMO, help="default: the demo model")
    parser.add_argument("--draft", type=Path, default=None, help="draft model; default: none")
    parser.add_argument("--dtype", choices=DTYPES, default="int8")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    text = (DEMO / "heldout.txt").read_text(encoding="utf-8")
    text_ids = tokenizer.encode(text, add_special_tokens=False).ids
    found: dict[str, Any] = {}
    acceptance: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases:
            case = CASES[name]
            config = {"model": options.model, "dtype": options.dtype, "num_threads": options.threads}
            config["draft_model"] = options.draft
            if name == "long_context":
                config["model"] = stretched(options.model, Path(folder))
            numbers = measure(config, case, text_ids, options.rounds)
            print(f"{name}: {json.dumps(numbers)}", flush=True)
            found[name] = numbers["ratio"]
            guessed = numbers["guessed"]
            acceptance[name] = round(numbers["right"] / guessed, 3) if guessed else None
    print(json.dumps(found | {"acceptance": acceptance}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
