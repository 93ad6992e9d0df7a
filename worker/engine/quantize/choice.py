"""Chooses a format for each product: the fewest bytes for a loss. Knows no model."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Product = TypeVar("Product", bound=Hashable)
Format = TypeVar("Format")


@dataclass(frozen=True, slots=True)
class FormatCost:
    """What a format of a product costs."""

    num_bytes: int
    loss: float  # nats a token


def choose(costs: Mapping[Product, Mapping[Format, FormatCost]], budget: float) -> dict[Product, Format]:
    """Return the formats of the fewest bytes, or nearly so, whose losses sum to `budget` nats at most.

    Each product begins with its least loss. Then the steps to fewer bytes are taken that save the most of
    them for the loss, as long as the budget lasts. A product whose step was too large stays where it is.
    """
    chosen: dict[Product, Format] = {}
    steps: list[tuple[float, Product, Format, float]] = []
    spent = 0.0
    for product, options in costs.items():
        best = _best(list(options.items()))
        chosen[product] = best[0][0]
        spent += best[0][1].loss
        for (_, before), (format_, after) in pairwise(best):
            steps.append((_gain(before, after), product, format_, after.loss - before.loss))
    ended = set()
    for _, product, format_, loss in sorted(steps, key=lambda step: step[0], reverse=True):
        if product in ended or spent + loss > budget:
            ended.add(product)
            continue
        spent += loss
        chosen[product] = format_
    return chosen


def _gain(before: FormatCost, after: FormatCost) -> float:
    """Return the bytes that a step saves for each nat it costs."""
    return (before.num_bytes - after.num_bytes) / max(after.loss - before.loss, 1e-12)


def _best(options: Sequence[tuple[Format, FormatCost]]) -> list[tuple[Format, FormatCost]]:
    """Return the options from the least loss to the fewest bytes whose gains fall from step to step.

    An option that is no smaller than one of less loss is left out, and one that two others together beat.
    """
    found: list[tuple[Format, FormatCost]] = []
    for option in sorted(options, key=lambda one: (one[1].loss, one[1].num_bytes)):
        if found and option[1].num_bytes >= found[-1][1].num_bytes:
            continue
        while len(found) > 1 and _gain(found[-2][1], found[-1][1]) <= _gain(found[-1][1], option[1]):
            found.pop()
        found.append(option)
    return found
