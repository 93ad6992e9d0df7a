"""Makes the figures of plots, where matplotlib is installed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEEDED = "needs matplotlib: pip install 'headrace[tune]'"


def new_figure(width: float, height: float) -> "Figure | None":
    """Return an empty figure of so many inches, to be saved as PNG; None without the extra `tune`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
