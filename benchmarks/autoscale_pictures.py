"""Draws what scaling policies did over a trace, and what that took over the bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arrivals import HOUR
from worker.drawing import NEEDED, new_figure

Course = Sequence[tuple[float, int, float]]  # as `Totals` keeps it
POLICIES = {
    "ours": "gpu_hours",
    "ours with spot": "spot_gpu_hours",
    "queue length": "queue_length_gpu_hours",
    "last value": "last_value_gpu_hours",
}


def draw_course(file: Path, runs: Mapping[str, Course]) -> None:
    """Draw, for each policy, the workers of its fleet and the work that waits, over the hours of a trace."""
    figure = _figure(8, 5)
    workers, work = figure.subplots(2, 1, sharex=True)
    for policy, course in runs.items():
        hours = [now / HOUR for now, _, _ in course]
        workers.step(hours, [count for _, count, _ in course], where="post", label=policy, linewidth=1)
        work.plot(hours, [left / HOUR for _, _, left in course], label=policy, linewidth=1)
    workers.set(ylabel="workers")
    workers.legend()
    work.set(xlabel="hours", ylabel="work left (hours of a worker)")
    figure.savefig(file, dpi=100)


def draw_hours(file: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Draw the GPU-hours of each policy over the bound, by trace."""
    figure = _figure(8, 3.6)
    axes = figure.add_subplot()
    width = 1 / (len(POLICIES) + 1)
    for place, (policy, hours) in enumerate(POLICIES.items()):
        ratios = [one[hours] / one["oracle_gpu_hours"] for one in found]
        axes.bar([number + place * width for number in range(len(found))], ratios, width, label=policy)
    axes.axhline(1, color="black", linewidth=1)
    middle = (len(POLICIES) - 1) * width / 2
    axes.set_xticks([number + middle for number in range(len(found))], [one["trace"] for one in found])
    axes.set(ylabel="GPU-hours over the bound")
    figure.legend(loc="outside upper center", ncols=len(POLICIES))
    figure.savefig(file, dpi=100)


def _figure(width: float, height: float) -> Any:
    figure = new_figure(width, height)
    if figure is None:
        raise SystemExit(f"benchmarks.autoscale: --pictures {NEEDED}")
    return figure
