"""Finds the formats of a checkpoint's products that take the fewest bytes within a loss."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log1p
from pathlib import Path

from torch import Tensor

from kernels.quantization.int4 import GROUP_SIZES
from worker.engine.quantize.calibration import Moments, observe
from worker.engine.quantize.choice import FormatCost, choose
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.sensitivity import ReadText, Sensitivity
from worker.quality.text import TextComparison

FORMATS = (*(WeightFormat("int4", size) for size in sorted(GROUP_SIZES, reverse=True)), WeightFormat("int8"))
# The text is dealt out by windows: of each four, two are calibrated on, on one each product is measured, and
# on one the whole.
PARTS = 4
MOST_MEASURED = 4
MOST_CHECKED = 32
MOST_CHOICES = 8

Costs = Mapping[str, Mapping[WeightFormat | None, FormatCost]]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The formats of modules; those that are not named stay as they are."""

    formats: dict[str, WeightFormat]
    num_modules: int  # that could have one
    moments: dict[str, Moments]
    comparison: TextComparison  # with the exact model, on text that nothing was calibrated on


def find_formats(
    model: Path, windows: Sequence[Tensor], max_loss: float, told: Callable[[str], None] = lambda _: None
) -> Mixture:
    """Return the formats of the fewest bytes that raise the perplexity by `max_loss` at most, as a share.

    It is the whole interval of the rise that is within `max_loss`, on windows that products were not
    measured on. `told` gets a line for each step. Raises CheckpointError, or ValueError if there are fewer
    than four windows.
    """
    if len(windows) < PARTS:
        raise ValueError(f"the text has {len(windows)} windows of tokens; at least {PARTS} are needed")
    calibrated = [window for place, window in enumerate(windows) if place % PARTS < 2]
    moments = observe(model, calibrated, Moments)
    sensitivity = Sensitivity(model, moments)
    costs = _measure(sensitivity, sensitivity.read(windows[2::PARTS][:MOST_MEASURED]), told)
    checked = sensitivity.read(windows[3::PARTS][:MOST_CHECKED])
    chosen, comparison = _fit(sensitivity, costs, checked, max_loss, told)
    modules = sensitivity.products
    formats = {module: format_ for product, format_ in chosen.items() for module in modules[product]}
    num_modules = sum(map(len, modules.values()))
    return Mixture(formats, num_modules, moments, comparison)


def _measure(sensitivity: Sensitivity, text: ReadText, told: Callable[[str], None]) -> Costs:
    costs: dict[str, dict[WeightFormat | None, FormatCost]] = {}
    for product in sensitivity.products:
        costs[product] = found = sensitivity.costs(product, FORMATS, text)
        told(f"{product}: " + ", ".join(f"{one} {cost.loss:.6f}" for one, cost in found.items() if one))
    return costs


def _fit(
    sensitivity: Sensitivity, costs: Costs, text: ReadText, max_loss: float, told: Callable[[str], None]
) -> tuple[dict[str, WeightFormat], TextComparison]:
    """Return the formats of the smallest choice that is within the loss as a whole.

    What products cost one by one only orders the choices: together they cost more or less than the sum. So
    the sum that may be spent is searched for, by halves.
    """
    best: dict[str, WeightFormat] = {}
    comparison = sensitivity.compare(best, text)
    allowed, refused = 0.0, None
    spent = log1p(max_loss)
    for _ in range(MOST_CHOICES):
        chosen = {product: one for product, one in choose(costs, spent).items() if one is not None}
        if chosen == best:
            found = comparison
        else:
            found = sensitivity.compare(chosen, text)
            told(f"{say_formats(chosen, len(costs))}: {say_change(found)}")
        if found.change_interval[1] <= max_loss:
            best, comparison, allowed = chosen, found, spent
        else:
            refused = spent
        spent = 2 * spent if refused is None else (allowed + refused) / 2
    return best, comparison


def say_formats(formats: Mapping[str, WeightFormat], total: int) -> str:
    """Return how many of all products or modules have each format, as text."""
    found = Counter(map(str, formats.values()))
    parts = [f"{number} {name}" for name, number in sorted(found.items())]
    rest = total - len(formats)
    return ", ".join([*parts, *([f"{rest} as they are"] if rest else [])])


def say_change(found: TextComparison) -> str:
    """Return how a perplexity has changed, as text."""
    low, high = found.change_interval
    return f"perplexity {found.change:+.2%} ({low:+.2%} to {high:+.2%})"
