"""Times a batch's last token from its cancel: `python -m worker.embedded python -m benchmarks.cancelling`.

A batch that fills the engine is cancelled while it runs, again and again; nothing else runs. The worker
records when each Step ended. The last line is JSON.
"""

import argparse
import json
import statistics
import sys
import time

import httpx

from api.cli.session import SessionError, choose_ports, session
from benchmarks.polling import percentile_ms
from benchmarks.step_clock import gpu_command, read_steps
from worker.settings import settings

PROCESSES = ("web", "gpu", "callbacks", "dispatcher")
WAIT_SECONDS = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the cancels and print the percentiles; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cancels", type=int, default=12)
    parser.add_argument("--requests", type=int, default=500, help="of each batch")
    options = parser.parse_args(arguments)
    if min(options.cancels, options.requests) < 1:
        parser.error("--cancels and --requests must be above 0")
    choose_ports()
    config = settings()
    steps = config.data_dir / "steps"
    try:
        with session(config.data_dir / "bench.log", PROCESSES, replaced=gpu_command(steps)) as client:
            spans = [cancel(client, options.requests, number) for number in range(options.cancels + 1)][1:]
    except (SessionError, httpx.HTTPError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    timed = read_steps(steps)
    # Without a Step after the cancel, the Step before it was the last, and the cancel took no time.
    last = [max([asked, *(step.at for step in timed if step.at <= ended)]) - asked for asked, ended in spans]
    summary = {
        "cancel_ms": percentile_ms(last, 50),
        "cancel_worst_ms": percentile_ms(last, 100),
        "step_ms": round(1000 * statistics.median(step.seconds for step in timed), 2),
        "cancels": len(last),
    }
    print(json.dumps(summary))
    return 0


def cancel(client: httpx.Client, num_requests: int, number: int) -> tuple[float, float]:
    """Run a batch until it has tokens, then cancel it; return the times of the cancel and of the end."""
    requests = [{"prompt": f"# {number}.{i}\nimport "} for i in range(num_requests)]
    body = {"requests": requests, "max_tokens": 400, "ignore_eos": True}
    batch_id = client.post("/v1/batch/async", json=body).raise_for_status().json()["batch_id"]
    path = f"/v1/batch/{batch_id}"
    deadline = time.monotonic() + WAIT_SECONDS
    while not client.get(path).json()["tokens"]["done"]:
        _wait(deadline, "does not begin")
    asked = time.time()
    client.post(f"{path}/cancel").raise_for_status()
    while client.get(path).json()["status"] != "cancelled":
        _wait(deadline, "does not end")
    return asked, time.time()


def _wait(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise SessionError(f"the batch {problem}")
    time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
