"""Times a webhook from its batch's last token: `python -m worker.embedded python -m benchmarks.callbacks`.

Small batches run one after the other on an otherwise idle service. The worker records when each Step ended;
the receiver records when it was called. The last line is JSON.
"""

import argparse
import json
import sys
import time

import httpx

from api.cli.receiver import receiver
from api.cli.session import SessionError, choose_ports, session
from benchmarks.polling import percentile_ms
from benchmarks.step_clock import gpu_command, read_steps
from worker.settings import settings

PROCESSES = ("web", "gpu", "callbacks", "dispatcher")
WAIT_SECONDS = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run the batches and print the percentiles; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--requests", type=int, default=8, help="of each batch")
    parser.add_argument("--max-tokens", type=int, default=24, help="of each request")
    options = parser.parse_args(arguments)
    if min(options.batches, options.requests, options.max_tokens) < 1:
        parser.error("--batches, --requests and --max-tokens must be above 0")
    choose_ports()
    config = settings()
    steps = config.data_dir / "steps"
    try:
        with session(config.data_dir / "bench.log", PROCESSES, replaced=gpu_command(steps)) as client:
            called = [call(client, options, number) for number in range(options.batches + 1)][1:]
    except (SessionError, httpx.HTTPError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    timed = read_steps(steps)
    seconds = [at - max(step.at for step in timed if step.at < at) for at in called]
    summary = {f"webhook_p{percent}_ms": percentile_ms(seconds, percent) for percent in (50, 95)}
    print(json.dumps(summary | {"batches": len(seconds)}))
    return 0


def call(client: httpx.Client, options: argparse.Namespace, number: int) -> float:
    """Run a batch until its verified webhook arrives; return the time of arrival."""
    requests = [{"prompt": f"# {number}.{i}\nimport "} for i in range(options.requests)]
    body = {"requests": requests, "max_tokens": options.max_tokens, "ignore_eos": True}
    with receiver(settings().webhook_secrets[0]) as received:
        client.post("/v1/batch/async", json=body | {"callback_url": received.url}).raise_for_status()
        event = received.wait(WAIT_SECONDS)
        arrived = time.time()
    if event is None or event["data"]["counts"]["completed"] != options.requests:
        raise SessionError(f"the batch did not complete: {event}")
    return arrived


if __name__ == "__main__":
    sys.exit(main())
