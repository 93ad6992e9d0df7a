"""Draws how a run went."""

from collections.abc import Sequence
from pathlib import Path

SMOOTHED = 100  # points of the loss, at most


def write_png(file: Path, losses: Sequence[float], acceptance: Sequence[tuple[int, float]]) -> bool:
    """Draw the loss of each step, and the acceptance after some steps; return False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    width = -(-len(losses) // SMOOTHED)
    parts = [losses[start : start + width] for start in range(0, len(losses), width)]
    ends = [min(width * (index + 1), len(losses)) for index in range(len(parts))]
    left.plot(ends, [sum(part) / len(part) for part in parts], color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss (nats a token)", color="tab:blue")
    right = left.twinx()
    right.plot(
        [step for step, _ in acceptance], [100 * share for _, share in acceptance], "o-", color="tab:red"
    )
    right.set_ylabel("acceptance on held-out text (%)", color="tab:red")
    figure.savefig(file, dpi=120)
    return True
