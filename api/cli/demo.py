"""Runs `make demo`: sends a real batch through a real deployment, from HTTP to a verified webhook.

Run as `python -m worker.embedded python -m api.cli.demo`. The last line is one JSON object.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx

from api.cli.receiver import receiver
from api.cli.session import SessionError, choose_ports, session
from worker.settings import DEMO_MODEL, settings

PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "files", "flower")
OPENINGS = (
    "def read_lines(path):\n    ",
    "class Queue:\n    ",
    "import json\n\ndef load_config(path):\n    ",
    "The json module provides",
    "Return the number of",
    "def test_split(self):\n        ",
    "for key, value in ",
    "Raises ValueError if",
)
NUM_PROMPTS = 240
LENGTHS = (40, 80, 160, 320, 640, 1200)  # characters of held-out text that a prompt starts with
DEADLINE_SECONDS = 240.0
SHOWN = 4


def prompts() -> list[str]:
    """Return real prompts of mixed lengths: openings, and pieces of text that the model has never seen."""
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    pieces = NUM_PROMPTS - len(OPENINGS)
    starts = range(0, len(text) - max(LENGTHS), (len(text) - max(LENGTHS)) // pieces)
    return [*OPENINGS, *(text[s : s + LENGTHS[i % len(LENGTHS)]] for i, s in enumerate(starts[:pieces]))]


def run(client: httpx.Client, secret: str, batch: Sequence[str]) -> dict[str, Any]:
    """Submit the batch, show its progress, wait for its webhook; return the summary."""
    with receiver(secret) as received:
        say(f"submitting {len(batch)} prompts, callback {received.url}")
        started = time.monotonic()
        body = {"prompts": batch, "max_tokens": 64, "temperature": 0.7, "top_p": 0.95, "seed": 1}
        accepted = client.post("/v1/batch/async", json=body | {"callback_url": received.url})
        accepted.raise_for_status()
        batch_id = accepted.json()["batch_id"]
        say(f"202 in {(time.monotonic() - started) * 1000:.0f} ms: {batch_id}")
        answer = follow(client, batch_id, until=started + DEADLINE_SECONDS)
        seconds = time.monotonic() - started
        event = received.wait(30)
    verified = event is not None and event["data"]["id"] == batch_id
    verdict = "signature verified" if verified else "NOT verified"
    say(f"webhook {event['type'] if event else 'missing'}: {verdict}")
    show(client, batch_id, batch)
    return {
        "batch_id": batch_id,
        "status": answer["status"],
        "requests": answer["counts"]["completed"],
        "input_tokens": answer["usage"]["input_tokens"],
        "output_tokens": answer["usage"]["output_tokens"],
        "seconds": round(seconds, 2),
        "output_tokens_per_second": round(answer["usage"]["output_tokens"] / seconds, 1),
        "webhook_verified": verified,
    }


def follow(client: httpx.Client, batch_id: str, *, until: float) -> dict[str, Any]:
    """Print the progress when it changes; return the batch once it has ended, or at the deadline."""
    shown = -1.0
    while True:
        answer: dict[str, Any] = client.get(f"/v1/batch/{batch_id}", params={"include": "none"}).json()
        is_over = answer["status"] not in {"pending", "processing"} or time.monotonic() > until
        if is_over or answer["progress"] >= shown + 0.05:
            shown = answer["progress"]
            bar = "#" * round(shown * 30)
            counts, tokens = answer["counts"], answer["tokens"]
            say(
                f"[{bar:<30}] {shown:4.0%}  {counts['completed']:>3}/{counts['total']} requests  "
                f"{tokens['done']:>6} tokens  {answer['status']}"
            )
        if is_over:
            return answer
        time.sleep(0.1)


def show(client: httpx.Client, batch_id: str, batch: Sequence[str]) -> None:
    """Print a few outputs after their prompts."""
    page = client.get(f"/v1/batch/{batch_id}/results", params={"limit": 1000}).json()
    outputs = {result["index"]: result["output"] for result in page["data"]}
    for i in range(SHOWN):
        say(f"--- prompt {i} and its output ---\n{batch[i]}\x1b[1m{outputs.get(i)}\x1b[0m")


def say(line: str) -> None:
    """Print a line without buffering."""
    sys.stdout.write(
        (line if sys.stdout.isatty() else line.replace("\x1b[1m", "").replace("\x1b[0m", "")) + "\n"
    )
    sys.stdout.flush()


def main() -> int:
    """Run the demo; return 0 if the batch completed and its webhook verified."""
    choose_ports()
    config = settings()
    if not config.webhook_secrets:
        sys.stderr.write("run the demo under `python -m worker.embedded`, as `make demo` does\n")
        return 2
    log = config.data_dir / "demo.log"
    flower = f"http://127.0.0.1:{config.flower_port}"
    say(f"starting the API, a worker, callbacks, a dispatcher and Flower ({flower}); their log is {log}")
    try:
        with session(log, PROCESSES) as client:
            summary = run(client, config.webhook_secrets[0], prompts())
    except (SessionError, httpx.HTTPError) as error:
        sys.stderr.write(f"the demo failed: {error}\nsee {log}\n")
        return 1
    say(json.dumps(summary))
    return 0 if summary["status"] == "completed" and summary["webhook_verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
