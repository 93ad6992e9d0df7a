"""Times a small tenant's batch alone, and beside another tenant's backlog that is many times as large.

    python -m benchmarks.fairness [--model DIR] [--requests 64] [--times 100] [--turns 3]

The whole service runs, with API keys. In each turn, the small batch runs alone, then while the large one
keeps every slot busy, then alone again, each time with different prompts. A turn's ratio is the time beside
the backlog over the mean of the two times alone. The last line is JSON.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from api.cli.session import SessionError
from benchmarks.tenants import StalledError, client_of, deployed, submit, view, wait
from worker.settings import DEMO_MODEL

PROMPT_CHARACTERS = (40, 400)
OUTPUT_TOKENS = (16, 96)
ATTEMPTS = 3  # for each turn


def requests(count: int, name: str) -> list[dict[str, Any]]:
    """Return a batch's requests; the name changes the prompts, not the lengths."""
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    draw = random.Random(7)
    found = []
    for index in range(count):
        start = draw.randrange(len(text) - PROMPT_CHARACTERS[1])
        prompt = f"# {name} {index}\n{text[start : start + draw.randint(*PROMPT_CHARACTERS)]}"
        found.append({"prompt": prompt, "max_tokens": draw.randint(*OUTPUT_TOKENS)})
    return found


def timed(client: httpx.Client, count: int, name: str) -> float:
    """Return the seconds from the POST to the end of a batch."""
    batch = requests(count, name)
    started = time.perf_counter()
    ended = wait(client, submit(client, batch))
    seconds = time.perf_counter() - started
    if ended["counts"]["completed"] != count:
        raise SessionError(f"the batch did not complete: {ended['counts']}")
    return seconds


def wait_for_settled(client: httpx.Client, batch_id: str, least: int) -> int:
    """Wait until a batch has at least `least` results; return how many it has."""
    while (found := view(client, batch_id)["counts"]["completed"]) < least:
        time.sleep(0.2)
    return int(found)


def turn(small: httpx.Client, large: httpx.Client, count: int, times: int, number: int) -> dict[str, float]:
    """Run one turn; return its times, and how much of the large batch was done meanwhile."""
    before = timed(small, count, f"{number} before")
    batch_id = submit(large, requests(count * times, f"{number} large"))
    try:
        done = wait_for_settled(large, batch_id, count)
        shared = timed(small, count, f"{number} shared")
        done = view(large, batch_id)["counts"]["completed"] - done
    finally:
        large.post(f"/v1/batch/{batch_id}/cancel").raise_for_status()
        wait(large, batch_id)
    after = timed(small, count, f"{number} after")
    alone = (before + after) / 2
    return {"alone_s": alone, "shared_s": shared, "ratio": shared / alone, "large_done": done}


def main(arguments: list[str] | None = None) -> int:
    """Run the turns and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, help="default: HEADRACE_MODEL, else the demo's")
    parser.add_argument("--requests", type=int, default=64, help="of the small batch")
    parser.add_argument("--times", type=int, default=100, help="how many times as large the other one is")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(arguments)
    if min(options.requests, options.times, options.turns) < 1:
        parser.error("--requests, --times and --turns must be at least 1")
    turns: list[dict[str, float]] = []
    try:
        with (
            deployed(options.model, "small", "large") as tenants,
            client_of(tenants.headers["small"]) as small,
            client_of(tenants.headers["large"]) as large,
        ):
            timed(small, 8, "warm-up")
            for number in range(options.turns * ATTEMPTS):
                if len(turns) == options.turns:
                    break
                try:
                    turns.append(turn(small, large, options.requests, options.times, number))
                except StalledError as error:
                    print(f"a turn does not count: the machine stood still {error}", flush=True)
                    continue
                print({name: round(value, 2) for name, value in turns[-1].items()}, flush=True)
    except (SessionError, httpx.HTTPError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if not turns:
        print("no turn counts", file=sys.stderr)
        return 2
    medians = {name: statistics.median(one[name] for one in turns) for name in turns[0]}
    print(
        json.dumps(
            {
                "requests": options.requests,
                "times": options.times,
                "turns": len(turns),
                "alone_s": round(medians["alone_s"], 2),
                "shared_s": round(medians["shared_s"], 2),
                "ratio": round(medians["ratio"], 3),
                "worst_ratio": round(max(one["ratio"] for one in turns), 3),
                "large_done": medians["large_done"],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
