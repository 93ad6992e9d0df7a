"""Measures speculation and distillation by the commands that offer them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.distilled import LAYERS, STEPS, distill_demo, last_line, latencies
from benchmarks.quality import DEMO, WINDOW, HeldOut
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup, ratio, rounded
from worker.engine.quantize.text_forward import TextForward

CASES = ("interactive", "sampled", "tail")
QUALITY_TOKENS = 8_192  # of the held-out text


def speculation(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run one greedy request with guessed tokens and without; other cases are beside it."""
    found = last_line("benchmarks.speculation", "--rounds", str(setup.rounds), "--cases", *CASES)
    return {"speculation": MeasuredFigure(1 - 1 / found["interactive"], {"ratios": found})}


def distillation(setup: Setup) -> dict[str, MeasuredFigure]:
    """Prune the demo model to a third of its layers, teach it for a few minutes, and compare the two.

    The text that they are compared on is new to both: the demo model knows what it taught.
    """
    with TemporaryDirectory() as folder:
        student = distill_demo(Path(folder))
        seconds = latencies(student, setup.rounds)
        held_out = HeldOut(QUALITY_TOKENS)
        whole, _ = held_out.score(TextForward(DEMO, WINDOW, torch.bfloat16))
        small, compared = held_out.score(TextForward(student, WINDOW, torch.bfloat16))
    told = {"layers": LAYERS, "steps": STEPS}
    scores = {
        "perplexity": small,
        "teacher_perplexity": whole,
        "same_likeliest_token": round(compared.agreement, 4),
    }
    return {
        "distillation_latency": MeasuredFigure(
            1 - 1 / ratio(seconds, "teacher", "student"), rounded(seconds) | told
        ),
        "distillation_quality": MeasuredFigure(small / whole - 1, told | scores),
    }
