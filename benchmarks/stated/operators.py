"""Measures quantized products, fused operators, and preemption."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from benchmarks.admission import Shape, make_backlog, run_once
from benchmarks.quality import DEMO, WINDOW, HeldOut
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup, in_turns, ratio, rounded, run_seconds
from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.layer_end import SeparateEnd
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.text_forward import TextForward
from worker.engine.quantize.writer import quantize_checkpoint

FEW = 6  # requests of the latency of one at a time
QUALITY_TOKENS = 8_192  # of the held-out text
BACKLOG = Shape(num_short=60, num_long=4, long_tokens=384)
MANY_BLOCKS, FEW_BLOCKS = 1024, 96


def quantization(setup: Setup) -> dict[str, MeasuredFigure]:
    """Compare int8 with f32: single requests, a full batch, and the demo model's perplexity."""
    engines = {dtype: setup.engine(dtype, enable_prefix_cache=False) for dtype in ("f32", "int8")}
    few = setup.items[:FEW]
    alone = in_turns(
        {name: partial(run_seconds, one, few, at_once=1) for name, one in engines.items()}, setup.rounds
    )
    full = in_turns(
        {name: partial(run_seconds, one, setup.items) for name, one in engines.items()}, setup.rounds
    )
    with TemporaryDirectory() as folder:
        quantized = Path(folder, "int8")
        quantize_checkpoint(DEMO, quantized, WeightFormat("int8"))
        held_out = HeldOut(QUALITY_TOKENS)
        exact, _ = held_out.score(TextForward(DEMO, WINDOW, torch.bfloat16))
        weights = partial(Weights, eight_bits="int8")
        lossy, _ = held_out.score(TextForward(quantized, WINDOW, torch.bfloat16, weights))
    return {
        "quantization_latency": MeasuredFigure(1 - 1 / ratio(alone, "f32", "int8"), rounded(alone)),
        "quantization_cost": MeasuredFigure(1 - 1 / ratio(full, "f32", "int8"), rounded(full)),
        "quantization_quality": MeasuredFigure(
            lossy / exact - 1, {"bf16_perplexity": exact, "int8_perplexity": lossy}
        ),
    }


def fusion(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run int8 layers as one parallel region of fused operators, and operator by operator."""
    fused = setup.engine("int8", enable_prefix_cache=False)
    with patch("worker.engine.models.decoder.layer_end", SeparateEnd):
        separate = setup.engine("int8", enable_prefix_cache=False)
    engines = {"fused": fused, "separate": separate}
    seconds = in_turns(
        {name: partial(run_seconds, one, setup.items) for name, one in engines.items()}, setup.rounds
    )
    return {"fusion": MeasuredFigure(1 - 1 / ratio(seconds, "separate", "fused"), rounded(seconds))}


def preemption(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run a backlog with Blocks for all of it, and with few: how many tokens are computed again."""
    engines = {
        name: setup.engine("int8", num_blocks=num_blocks, enable_prefix_cache=False)
        for name, num_blocks in (("many", MANY_BLOCKS), ("few", FEW_BLOCKS))
    }
    found: dict[str, dict[str, float]] = {}

    def run(name: str, turn: int) -> float:
        engine = engines[name]
        before = engine.stats.computed_tokens
        requests = make_backlog("hidden", BACKLOG, engine.model_info.vocab_size, turn)
        found[name] = run_once(engine, requests)
        found[name]["computed"] = engine.stats.computed_tokens - before
        return found[name]["seconds"]

    seconds = in_turns({name: partial(run, name) for name in engines}, setup.rounds)
    few = found["few"]
    details = rounded(seconds) | {
        "preemptions": few["preemptions"],
        "recomputed_tokens": few["recomputed_tokens"],
        "time_with_few_blocks": round(ratio(seconds, "few", "many"), 3),
    }
    return {"preemption": MeasuredFigure(few["recomputed_tokens"] / few["computed"], details)}
