"""Defines the stated figures: each with its sentence, its bounds, and the benchmark that measures it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StatedFigure:
    """A figure that the design documents state. With neither bound, they state none."""

    key: str
    sentence: str
    unit: str  # times, share
    bench: str  # the module that measures it
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """What was measured of a stated figure, and the numbers behind it."""

    value: float
    details: dict[str, Any] = field(default_factory=dict)


STATED = (
    StatedFigure(
        "batching",
        "Batching gives 5 to 10 times the throughput of one request at a time.",
        "times",
        "benchmarks.offline",
        least=5,
    ),
    StatedFigure(
        "padded_batches",
        "Continuous batching gives 5 to 10 times the throughput of padded batches.",
        "times",
        "benchmarks.peer_engines.transformers",
        least=5,
    ),
    StatedFigure(
        "padding_waste",
        "Padded batches of mixed lengths waste rows, packed Steps none. (Share that padded ones waste.)",
        "share",
        "benchmarks.peer_engines.transformers",
    ),
    StatedFigure(
        "batching_cost",
        "Batching cuts the cost of a token by 70%.",
        "share",
        "benchmarks.offline",
        least=0.7,
    ),
    StatedFigure(
        "utilization",
        "The use of the device rises from 10% to 80% with the batch size. (Share of its peak in products.)",
        "share",
        "benchmarks.stated.batching",
        least=0.8,
    ),
    StatedFigure(
        "quantization_latency",
        "Quantization cuts latency by 40%.",
        "share",
        "benchmarks.offline",
        least=0.4,
    ),
    StatedFigure(
        "quantization_cost",
        "Quantization cuts cost by 50%.",
        "share",
        "benchmarks.offline",
        least=0.5,
    ),
    StatedFigure(
        "quantization_quality",
        "Quantization costs 1 to 3% of quality. (Growth of perplexity.)",
        "share",
        "benchmarks.quality",
        most=0.03,
    ),
    StatedFigure(
        "response_cache",
        "The response cache cuts cost by 90%. (Device time, at a hit rate of 90%.)",
        "share",
        "benchmarks.stated.response_cache",
        least=0.9,
    ),
    StatedFigure(
        "kv_cache",
        "The KV cache makes generation 5 to 10 times as fast.",
        "times",
        "benchmarks.stated.prefixes",
        least=5,
    ),
    StatedFigure(
        "conversations",
        "Keeping the KV cache of a conversation between its turns cuts latency by 30%.",
        "share",
        "benchmarks.stated.prefixes",
        least=0.3,
    ),
    StatedFigure(
        "speculation",
        "Speculation cuts latency by 50%.",
        "share",
        "benchmarks.speculation",
        least=0.5,
    ),
    StatedFigure(
        "distillation_latency",
        "A distilled model cuts latency by 60%.",
        "share",
        "worker.engine.distill",
        least=0.6,
    ),
    StatedFigure(
        "distillation_quality",
        "A distilled model loses 5 to 10% of quality. (Growth of perplexity.)",
        "share",
        "worker.engine.distill",
        most=0.1,
    ),
    StatedFigure(
        "fusion",
        "Fused operators save 30 to 50% of the time.",
        "share",
        "benchmarks.stated.operators",
        least=0.3,
    ),
    StatedFigure(
        "preemption",
        "Preemption costs the tokens that are computed again. (Share of all computed tokens.)",
        "share",
        "benchmarks.admission",
    ),
)


def holds(stated: StatedFigure, measured: MeasuredFigure) -> bool | None:
    """Return whether a measured value, in two decimals, is as good as stated; None: no figure is stated."""
    if stated.least is None and stated.most is None:
        return None
    value = round(measured.value, 2)
    return (stated.least is None or value >= stated.least) and (stated.most is None or value <= stated.most)


def bound(stated: StatedFigure) -> str:
    """Return the stated figure in words."""
    if stated.least is not None:
        return f"at least {shown(stated, stated.least)}"
    return "no figure" if stated.most is None else f"at most {shown(stated, stated.most)}"


def shown(stated: StatedFigure, value: float) -> str:
    """Return a value in its unit."""
    return f"{value:.1f} times" if stated.unit == "times" else f"{100 * value:.1f}%"
