"""Write what a study has found: its Pareto front as a table and a picture, and its winner as variables."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.drawing import new_figure
from worker.tuning.measuring import MeasuredSetting
from worker.tuning.records import TrialRecord

FIELDS = ("trial", "tokens_per_second", "latency_p95_ms", "peak_memory_mb", "quality_loss", "low", "high")
VARIABLE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=")


def summary(before: MeasuredSetting, after: MeasuredSetting, num_trials: int) -> dict[str, Any]:
    """Return what tuning has changed: speed before and after, and what it costs in quality."""
    slow, fast = before.result.tokens_per_second, after.result.tokens_per_second
    return {
        "before_tok_s": round(slow, 1),
        "after_tok_s": round(fast, 1),
        "gain": round(fast / slow, 2),
        "quality_loss": round(after.loss.mean, 4),
        "interval": [round(after.loss.low, 4), round(after.loss.high, 4)],
        "trials": num_trials,
    }


def write_csv(file: Path, front: Sequence[TrialRecord]) -> None:
    """Write a line for each trial: its figures, then its settings."""
    variables = sorted({name for record in front for name in record.setting})
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow([*FIELDS, *variables])
        for record in front:
            if (found := record.figures) is not None:
                figures = [
                    round(found.tokens_per_second, 1),
                    round(found.latency_p95_ms, 1),
                    round(found.peak_memory_bytes / (1 << 20)),
                    *(round(value, 5) for value in (found.loss, found.loss_low, found.loss_high)),
                ]
                settings = [record.setting.get(name, "") for name in variables]
                writer.writerow([record.number, *figures, *settings])


def write_png(
    file: Path, records: Sequence[TrialRecord], front: Sequence[TrialRecord], winner: TrialRecord | None
) -> bool:
    """Draw every trial by speed and latency, coloured by quality loss; return False without matplotlib."""
    ended = [one.figures for one in records if one.figures is not None]
    best = [one.figures for one in front if one.figures is not None]
    figure = new_figure(7, 4.5)
    if figure is None:
        return False
    axes = figure.add_subplot()
    dots = axes.scatter(
        [one.tokens_per_second for one in ended],
        [one.latency_p95_ms for one in ended],
        c=[100 * one.loss for one in ended],
        cmap="viridis_r",
    )
    axes.plot(
        [one.tokens_per_second for one in best],
        [one.latency_p95_ms for one in best],
        "o",
        markersize=11,
        markerfacecolor="none",
        color="tab:red",
        label="Pareto front",
    )
    if winner is not None and winner.figures is not None:
        axes.plot(winner.figures.tokens_per_second, winner.figures.latency_p95_ms, "*k", label="winner")
    figure.colorbar(dots, label="quality loss (%)")
    axes.set(xlabel="output tokens/s", ylabel="latency, 95th percentile (ms)")
    axes.legend()
    figure.savefig(file, dpi=120)
    return True


def write_environment(file: Path, setting: Mapping[str, str]) -> None:
    """Set variables in an environment file, whose other lines stay; an empty value removes a variable."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    kept = [line for line in lines if not (found := VARIABLE.match(line)) or found[1] not in setting]
    ours = [f"{name}={value}" for name, value in setting.items() if value]
    file.write_text("".join(f"{line}\n" for line in (*kept, *ours)), encoding="utf-8")
