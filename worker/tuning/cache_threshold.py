"""Find the similarity from which the semantic cache may answer, by pairs of prompts that were labelled.

Knows no engine: `worker.tuning.similarities` embeds the prompts in a process of its own.
"""

import csv
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.drawing import new_figure

SIMILARITIES = "worker.tuning.similarities"
FIELDS = (
    "threshold",
    "precision",
    "precision_low",
    "recall",
    "hits",
    "recall_without_marks",
    "precision_without_marks",
)
Z = 1.96  # of an interval that holds with 95%


class EmbeddingError(Exception):
    """The prompts could not be embedded."""


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two prompts: how similar, and whether one answer is right for both."""

    similarity: float
    is_same: bool
    has_same_marks: bool  # prompts with other marks share no answer, however similar


@dataclass(frozen=True, slots=True)
class Threshold:
    """What the semantic cache does at a least similarity. Without a hit, its precision is 1."""

    least: float
    precision: float  # of the hits, those that are right
    precision_low: float  # the lower end of its interval
    recall: float  # of the pairs that could share an answer, those that do
    num_hits: int


def measure_similarities(requests: Path) -> list[float | None]:
    """Run `worker.tuning.similarities` on a file and return what it found; raises EmbeddingError."""
    command = [sys.executable, "-m", SIMILARITIES, str(requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise EmbeddingError(said[-1] if said else f"the process ended with status {done.returncode}")
    found: list[float | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def curve(pairs: Sequence[LabelledPair], *, with_marks: bool = True) -> list[Threshold]:
    """Return what each similarity that occurs would do as the threshold, the highest first."""
    num_same = sum(one.is_same for one in pairs)
    asked = sorted((one for one in pairs if one.has_same_marks or not with_marks), key=_descending)
    found: list[Threshold] = []
    num_right = 0
    for place, one in enumerate(asked, 1):
        num_right += one.is_same
        if place < len(asked) and asked[place].similarity == one.similarity:
            continue
        found.append(
            Threshold(
                one.similarity,
                num_right / place,
                wilson_low(num_right, place),
                num_right / num_same if num_same else 0.0,
                place,
            )
        )
    return found


def choose(found: Sequence[Threshold], *, min_precision: float) -> Threshold | None:
    """Return the threshold of the most right hits that is precise enough; None: there is none."""
    good = [one for one in found if one.precision >= min_precision and one.recall > 0]
    return max(good, key=lambda one: (one.recall, one.least), default=None)


def wilson_low(num_right: int, num: int) -> float:
    """Return the lower end of Wilson's interval of a share, with 95%."""
    share, square = num_right / num, Z * Z
    middle = share + square / (2 * num)
    spread = Z * math.sqrt(share * (1 - share) / num + square / (4 * num * num))
    return max(0.0, (middle - spread) / (1 + square / num))


def write_csv(file: Path, found: Sequence[Threshold], bare: Sequence[Threshold]) -> None:
    """Write a line for each threshold, also of what it would do without marks (`bare`)."""
    by_least = {one.least: one for one in found}
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(FIELDS)
        kept = Threshold(1.0, 1.0, 0.0, 0.0, 0)
        for one in bare:  # which has every similarity that occurs
            kept = by_least.get(one.least, kept)
            shown = (one.least, kept.precision, kept.precision_low, kept.recall)
            beside = (one.recall, one.precision)
            writer.writerow(
                [*(round(value, 5) for value in shown), kept.num_hits, *(round(value, 5) for value in beside)]
            )


def write_png(
    file: Path, found: Sequence[Threshold], bare: Sequence[Threshold], chosen: Threshold | None
) -> bool:
    """Draw precision by recall, with and without marks; return False without matplotlib."""
    figure = new_figure(7, 4.5)
    if figure is None:
        return False
    axes = figure.add_subplot()
    for points, label, style in ((bare, "similarity alone", "--"), (found, "with marks", "-")):
        axes.plot([one.recall for one in points], [one.precision for one in points], style, label=label)
    if chosen is not None:
        axes.plot(chosen.recall, chosen.precision, "*k", markersize=12, label=f"threshold {chosen.least:.4f}")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend()
    figure.savefig(file, dpi=120)
    return True


def _descending(pair: LabelledPair) -> float:
    return -pair.similarity
