"""Draws how a run went."""

from collections.abc import Sequence
from pathlib import Path

from worker.drawing import new_figure

SMOOTHED = 100  # points of the loss, at most


def write_png(file: Path, losses: Sequence[float], acceptance: Sequence[tuple[int, Sequence[float]]]) -> bool:
    """Draw the loss of each step, and the acceptance after some steps; return False without matplotlib.

    If the acceptance has several numbers, each is a head's and has its line.
    """
    figure = new_figure(7, 4)
    if figure is None:
        return False
    left = figure.add_subplot()
    width = -(-len(losses) // SMOOTHED)
    parts = [losses[start : start + width] for start in range(0, len(losses), width)]
    ends = [min(width * (index + 1), len(losses)) for index in range(len(parts))]
    left.plot(ends, [sum(part) / len(part) for part in parts], color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss (nats a token)", color="tab:blue")
    right = left.twinx()
    steps = [step for step, _ in acceptance]
    lines = list(zip(*(shares for _, shares in acceptance), strict=True))
    for number, shares in enumerate(lines, 1):
        faded = 1 - 0.6 * (number - 1) / len(lines)
        percents = [100 * share for share in shares]
        right.plot(steps, percents, "o-", color="tab:red", alpha=faded, label=f"head {number}")
    if len(lines) > 1:
        right.legend()
    right.set_ylabel("acceptance on held-out text (%)", color="tab:red")
    figure.savefig(file, dpi=120)
    return True
