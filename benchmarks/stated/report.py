"""Writes what was measured of the stated figures: a table, and pictures of the sweeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stated.figures import STATED, MeasuredFigure, bound, holds, shown
from worker.drawing import NEEDED, new_figure

ANSWERS = {True: "yes", False: "**no**", None: ""}


def write_table(file: Path, found: Mapping[str, MeasuredFigure], heading: str, day: str) -> None:
    """Write one line for each figure, in their order, and the pictures that lie beside the file.

    Figures that were not measured keep the line, with the day, that the file has of them.
    """
    rows = _rows(file)
    for one in STATED:
        if (measured := found.get(one.key)) is not None:
            cells = (
                f"`{one.key}`",
                one.sentence,
                bound(one),
                shown(one, measured.value),
                ANSWERS[holds(one, measured)],
                f"`{one.bench}`",
                day,
            )
            rows[one.key] = f"| {' | '.join(cells)} |"
    lines = [
        "# The stated figures beside ours",
        "",
        heading,
        "",
        "| key | what is said | stated | measured | holds | benchmark | measured on |",
        "|---|---|---|---|---|---|---|",
        *(rows[one.key] for one in STATED if one.key in rows),
    ]
    pictures = sorted(one.name for one in file.parent.glob("*.png"))
    lines += ["", *(f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures)]
    file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _rows(file: Path) -> dict[str, str]:
    """Return the lines of a table that was written before, by key."""
    if not file.exists():
        return {}
    lines = file.read_text("utf-8").splitlines()
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def draw(folder: Path, found: Mapping[str, MeasuredFigure]) -> None:
    """Draw the sweeps that were measured."""
    if (one := found.get("utilization")) is not None:
        _lines(
            folder / "utilization.png",
            {
                name: ([int(size) for size in shares], [100 * share for share in shares.values()])
                for name, shares in one.details["by_size"].items()
            },
            "most Sequences in a Step",
            "share of the matrix product peak (%)",
        )
    if (one := found.get("response_cache")) is not None:
        savings = one.details["by_hit_rate"]
        rates = [100 * float(rate) for rate in savings]
        _lines(
            folder / "response_cache.png",
            {
                name: (rates, [100 * saved[key] for saved in savings.values()])
                for name, key in (("device time", "device_seconds"), ("time of the batch", "seconds"))
            },
            "hit rate (%)",
            "saved (%)",
        )
    if (one := found.get("padding_waste")) is not None:
        names = ("by arrival", "sorted", "packed")
        _bars(folder / "padding.png", names, [100 * one.details[name] for name in names], "rows wasted (%)")
    speeds = {one.key: found[one.key] for one in STATED if one.unit == "times" and one.key in found}
    if speeds:
        _bars(folder / "speeds.png", list(speeds), [one.value for one in speeds.values()], "times as fast")


def _lines(
    file: Path, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], across: str, up: str
) -> None:
    figure = _figure()
    axes = figure.add_subplot()
    for name, (x, values) in lines.items():
        axes.plot(x, values, "o-", label=name)
    axes.set(xlabel=across, ylabel=up)
    axes.legend()
    figure.savefig(file, dpi=100)


def _bars(file: Path, names: Sequence[str], values: Sequence[float], up: str) -> None:
    figure = _figure()
    axes = figure.add_subplot()
    axes.bar(names, values)
    axes.set(ylabel=up)
    figure.savefig(file, dpi=100)


def _figure() -> Any:
    figure = new_figure(6, 3.6)
    if figure is None:
        raise RuntimeError(f"a picture {NEEDED}")
    return figure
