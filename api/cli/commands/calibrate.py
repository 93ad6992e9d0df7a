"""Defines `headrace calibrate`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from api.batches.schemas import BatchRequest, Message
from api.batches.submission import to_request
from api.cli.show import AsJson, fail, print_json, print_record
from api.cli.workload import DEFAULTS, WorkloadError, to_tuned
from api.errors import ApiError
from api.inputs.checkpoint import Checkpoint, ModelDirectoryError
from api.wrong_fields import explain, field_path
from worker.drawing import NEEDED
from worker.settings import NO_SERVICES, read_settings, take_env_file
from worker.tuning.cache_threshold import (
    EmbeddingError,
    LabelledPair,
    Threshold,
    choose,
    curve,
    measure_similarities,
    write_csv,
    write_png,
)
from worker.tuning.report import write_environment
from worker.tuning.requests import TunedRequest, write_requests
from worker.values.marks import find_marks

SIMILARITY = "HEADRACE_CACHE_SIMILARITY"
SHOWN = 12  # lines of the table


class PairLine(BaseModel):
    """A line of the file: two prompts or conversations, and whether one answer is right for both."""

    model_config = ConfigDict(extra="forbid", strict=True)

    a: str | list[Message]
    b: str | list[Message]
    same: bool


def calibrate(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="Lines of `a` and `b`, prompts or lists of messages, and `same`: true if one answer is right"
            " for both."
        ),
    ],
    min_precision: Annotated[
        float, typer.Option(min=0, max=1, help="The least share of the cache's hits that must be right.")
    ] = 0.99,
    out: Annotated[Path, typer.Option(help="The folder for calibration.csv and calibration.png.")] = Path(
        ".cache/calibration"
    ),
    env_file: Annotated[
        Path, typer.Option(help=f"The environment file that gets {SIMILARITY}; `up` reads .env.")
    ] = Path(".env"),
    as_json: AsJson = False,
) -> None:
    """Find the similarity from which the semantic cache may answer, by pairs that you have labelled.

    Prompts are embedded as a worker does, by HEADRACE_EMBEDDING_MODEL or else the served model. Settings may
    stand in the file .env of this directory.
    """
    take_env_file(Path(".env"))
    given, prompts = _read(pairs)
    with TemporaryDirectory() as folder:
        requests = Path(folder, "requests.jsonl")
        write_requests(requests, prompts)
        try:
            found = measure_similarities(requests)
        except EmbeddingError as error:
            fail(f"The prompts could not be embedded: {error}")
    labelled = _label(given, prompts, found)
    points, bare = curve(labelled), curve(labelled, with_marks=False)
    chosen = choose(points, min_precision=min_precision)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "calibration.csv", points, bare)
    if not write_png(out / "calibration.png", points, bare, chosen):
        sys.stderr.write(f"calibration.png {NEEDED}\n")
    if not as_json:
        _print_curve(points)
    if chosen is None:
        fail(f"No similarity has a precision of {min_precision:g}. {out / 'calibration.csv'} has the curve.")
    write_environment(env_file, {SIMILARITY: f"{_down(chosen.least):g}"})
    summary: dict[str, Any] = {
        "threshold": _down(chosen.least),
        "precision": round(chosen.precision, 4),
        "precision_low": round(chosen.precision_low, 4),
        "recall": round(chosen.recall, 4),
        "pairs": len(labelled),
        "same": sum(one.is_same for one in labelled),
        "other_marks": sum(not one.has_same_marks for one in labelled),
    }
    if as_json:
        print_json(summary)
    else:
        print_record(summary | {"settings": str(env_file), "curve": str(out / "calibration.csv")})


def _read(file: Path) -> tuple[list[PairLine], list[TunedRequest]]:
    """Return the pairs and their prompts, in order; end the process on an error."""
    config = read_settings(**NO_SERVICES)
    try:
        checkpoint = Checkpoint.load(config.model, aliases=config.model_aliases)
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except ModelDirectoryError as error:
        fail(str(error))
    except OSError as error:
        fail(f"Cannot read {error.filename or file}: {error.strerror}")
    pairs: list[PairLine] = []
    prompts: list[TunedRequest] = []
    for number, line in enumerate(lines, 1):
        try:
            pair = PairLine.model_validate(json.loads(line))
            prompts += [_to_prompt(checkpoint, one) for one in (pair.a, pair.b)]
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            fail(f"{file}, line {number}: {field_path(first) or 'the line'}: {explain(first)}")
        except (ValueError, ApiError, WorkloadError) as error:
            fail(f"{file}, line {number}: {error}")
        pairs.append(pair)
    if len({pair.same for pair in pairs}) < 2:
        fail(f"{file} needs pairs that are the same and pairs that are not.")
    return pairs, prompts


def _label(
    given: Sequence[PairLine], prompts: Sequence[TunedRequest], found: Sequence[float | None]
) -> list[LabelledPair]:
    """Return the pairs whose prompts could be embedded, with their similarities."""
    texts = [str(prompt.prompt) for prompt in prompts]
    return [
        LabelledPair(similarity, one.same, find_marks(a) == find_marks(b))
        for one, similarity, a, b in zip(given, found, texts[::2], texts[1::2], strict=True)
        if similarity is not None
    ]


def _to_prompt(checkpoint: Checkpoint, given: str | list[Message]) -> TunedRequest:
    field = {"prompt": given} if isinstance(given, str) else {"messages": given}
    return to_tuned(to_request(checkpoint, BatchRequest.model_validate(field), DEFAULTS, "pair"))


def _print_curve(points: Sequence[Threshold]) -> None:
    """Print the curve, a few lines of it if it has many."""
    sys.stdout.write("threshold  precision  (at least)  recall  hits\n")
    step = max(1, -(-len(points) // SHOWN))
    for one in points[::step]:
        shares = f"{one.precision:9.3f}  {one.precision_low:10.3f}  {one.recall:6.3f}"
        sys.stdout.write(f"{one.least:9.4f}  {shares}  {one.num_hits:4}\n")


def _down(similarity: float) -> float:
    """Return a similarity with few digits, rounded down so that the pair that has it is still a hit."""
    return int(similarity * 100_000) / 100_000
