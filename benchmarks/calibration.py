"""Checks estimates against real batches: `python -m worker.embedded python -m benchmarks.calibration`.

It runs random batches, some of them while another batch runs; the first ones are a warm-up and do not count.
It asks for the estimate before it submits a batch, and for the ETA when a quarter, half and three quarters of
the batch are done. It prints how often the real value lay within the stated range, and how wide the ranges
were. The last line is JSON.
"""

import argparse
import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

from api.cli.session import choose_ports, session
from benchmarks.tenants import ENDED
from worker.settings import DEMO_MODEL, settings

PROCESSES = ("web", "gpu", "callbacks", "dispatcher")
PROMPT_CHARACTERS = (20, 1200)
MAX_REQUESTS = 400
MAX_TOKENS = (8, 128)
# The most tokens that a batch may generate, so that every batch ends within minutes.
MOST_TOKENS = 8000
BESIDE_SHARE = 0.3  # the share of batches that run beside another one
PARTS = (0.25, 0.5, 0.75)
POLL_SECONDS = 0.2


@dataclass(slots=True)
class Trial:
    """The predictions for one batch and its real values. Ranges are (low, expected, high)."""

    num_requests: int
    max_tokens: int
    is_beside: bool
    seconds: tuple[float, float, float] | None
    tokens: tuple[float, float, float]
    true_seconds: float = 0.0
    true_tokens: int = 0
    # By the part that was done: the stated ETA, and the seconds that the batch then really took.
    etas: dict[float, tuple[tuple[float, float, float], float]] = field(default_factory=dict)


def draw_body(draw: random.Random, text: str) -> dict[str, Any]:
    """Return the body of a random batch; its sizes and lengths are log-uniform."""
    low, high = MAX_TOKENS
    max_tokens = round(math.exp(draw.uniform(math.log(low), math.log(high))))
    most = min(MAX_REQUESTS, MOST_TOKENS // max_tokens)
    num_requests = round(math.exp(draw.uniform(0, math.log(most))))
    shortest, longest = PROMPT_CHARACTERS
    typical = draw.uniform(math.log(shortest), math.log(longest))
    prompts = []
    for _ in range(num_requests):
        length = round(min(longest, max(shortest, math.exp(draw.gauss(typical, 0.4)))))
        start = draw.randrange(len(text) - longest)
        prompts.append(text[start : start + length])
    return {"prompts": prompts, "max_tokens": max_tokens}


def run(client: httpx.Client, body: dict[str, Any], beside: dict[str, Any] | None) -> Trial:
    """Ask for an estimate, then submit and follow one batch; `beside`, if any, is submitted just before."""
    other = None if beside is None else _submit(client, beside)
    answer = client.post("/v1/batch/estimate", json=body).raise_for_status().json()
    finish = answer["finish"]
    trial = Trial(
        num_requests=answer["requests"],
        max_tokens=body["max_tokens"],
        is_beside=beside is not None,
        seconds=None if finish is None else _ends(finish["seconds"]),
        tokens=_ends(answer["expected_output_tokens"]),
    )
    batch_id = _submit(client, body)
    said: dict[float, tuple[tuple[float, float, float], float]] = {}
    while (view := _view(client, batch_id))["status"] not in ENDED:
        now = time.time()
        for part in PARTS:
            if part not in said and view["progress"] >= part and view["eta_seconds"] is not None:
                between = view["eta_range"]
                said[part] = (between["low_seconds"], view["eta_seconds"], between["high_seconds"]), now
        time.sleep(POLL_SECONDS)
    trial.true_seconds = _moment(view["finished_at"]) - _moment(view["created_at"])
    trial.true_tokens = view["usage"]["output_tokens"]
    trial.etas = {part: (eta, _moment(view["finished_at"]) - at) for part, (eta, at) in said.items()}
    while other is not None and _view(client, other)["status"] not in ENDED:
        time.sleep(POLL_SECONDS)
    return trial


def _submit(client: httpx.Client, body: dict[str, Any]) -> str:
    return str(client.post("/v1/batch/async", json=body).raise_for_status().json()["batch_id"])


def _view(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    answer = client.get(f"/v1/batch/{batch_id}", params={"include_outputs": False})
    return dict(answer.raise_for_status().json())


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _ends(guess: dict[str, float]) -> tuple[float, float, float]:
    return guess["low"], guess["expected"], guess["high"]


def is_within(stated: tuple[float, float, float], truth: float) -> bool:
    """Return whether the real value lies in the stated range, to the digit that is shown."""
    return stated[0] - 0.05 <= truth <= stated[2] + 0.05


def _row(number: int, trial: Trial) -> str:
    seconds = trial.seconds
    if seconds is None:
        time_cells = f"{'unknown':>23} {trial.true_seconds:7.2f}    "
    else:
        mark = "in " if is_within(seconds, trial.true_seconds) else "OUT"
        cells = " ".join(f"{one:7.2f}" for one in seconds)
        time_cells = f"{cells} {trial.true_seconds:7.2f} {mark}"
    tokens = " ".join(f"{one:6.0f}" for one in trial.tokens)
    mark = "in " if is_within(trial.tokens, trial.true_tokens) else "OUT"
    beside = "+" if trial.is_beside else " "
    etas = " ".join(
        f"{eta[1]:.1f}/{left:.1f}{'' if is_within(eta, left) else '!'}" for eta, left in trial.etas.values()
    )
    return (
        f"{number:3} {trial.num_requests:4} x {trial.max_tokens:3}{beside} | {time_cells} | "
        f"{tokens} {trial.true_tokens:6} {mark} | {etas}"
    )


def _width(stated: tuple[float, float, float]) -> float:
    return stated[2] / max(stated[0], 0.05)


def summarize(trials: list[Trial]) -> dict[str, Any]:
    """Return how often the real value lay in the stated range, and how wide the ranges were."""
    known = [(trial.seconds, trial.true_seconds) for trial in trials if trial.seconds is not None]
    tokens = [(trial.tokens, float(trial.true_tokens)) for trial in trials]
    etas = [eta for trial in trials for eta in trial.etas.values()]
    summary: dict[str, Any] = {"batches": len(trials)}
    for name, pairs in (("seconds", known), ("tokens", tokens), ("eta", etas)):
        summary[name] = {
            "stated": len(pairs),
            "within": sum(is_within(stated, truth) for stated, truth in pairs),
            "median_high_over_low": round(statistics.median(_width(stated) for stated, _ in pairs), 2),
            "median_error": round(
                statistics.median(abs(math.log(truth / stated[1])) for stated, truth in pairs if truth > 0), 3
            ),
        }
    summary["eta_zero_while_running"] = sum(eta[1] <= 0 for eta, _ in etas)
    return summary


def main() -> int:
    """Run the batches and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    choose_ports()
    draw = random.Random(arguments.seed)
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    trials = []
    print("    requests x max | seconds: low, expected, high, true | tokens | ETA/true at 25, 50, 75%")
    with session(settings().data_dir / "calibration.log", PROCESSES) as client:
        for number in range(arguments.warm_up + arguments.batches):
            beside = draw_body(draw, text) if draw.random() < BESIDE_SHARE else None
            trial = run(client, draw_body(draw, text), beside)
            if number >= arguments.warm_up:
                trials.append(trial)
                print(_row(len(trials), trial), flush=True)
    print(json.dumps(summarize(trials)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
