"""`python -m tests.faults.harness --seeds 10 --faults 20`: run, break, check, report."""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.harness import audit, cluster, invariants
from tests.faults.harness.faults import FAULTS
from tests.faults.harness.load import Load
from tests.faults.harness.receiver import receiving
from tests.faults.harness.report import Report
from tests.faults.harness.scene import RECOVERY_SECONDS, NotRecoveredError, Scene
from tests.faults.harness.schedule import plan
from tests.fixtures.tiny_llama import write_tiny_llama

QUIET_SECONDS = 600.0
LIVE = "SELECT count(*) FROM batches WHERE status IN ('pending', 'processing', 'cancelling')"


def run_seed(seed: int, count: int, kinds: list[str], directory: Path, model: Path, report: Report) -> None:
    """Run one schedule against a deployment of its own, and add what came of it to the report."""
    with cluster.running(directory, model) as (deployment, secret), receiving(secret) as record:
        audit.install(deployment.postgres)
        scene = Scene(deployment, record, random.Random(seed))
        load = Load(deployment, record.url, seed)
        load.start()
        scene.next_result()
        for number, (wait, kind) in enumerate(plan(seed, count, kinds), 1):
            time.sleep(wait)
            said = f"seed {seed}, {number}/{count}: {kind}"
            try:
                seconds = FAULTS[kind](scene)
            except NotRecoveredError as error:
                report.broken.append(f"{said}: {error}")
                seconds = RECOVERY_SECONDS
            report.recoveries[kind].append(round(seconds, 2))
            print(f"{said}, {seconds:.2f} s", flush=True)
        load.stop()
        try:
            _wait_until_quiet(scene)
        except NotRecoveredError as error:
            report.broken.append(f"seed {seed}: {error}")
        found = invariants.check(deployment.postgres, load.sent, record, directory / "facts")
        report.findings.append(found)
        report.broken += load.errors
        exits = {one.name: dict(Counter(one.exits)) for one in deployment.members.values() if one.exits}
        print(
            f"seed {seed}: {len(load.sent)} batches, {found.num_requests} requests, {len(found.lost)} lost, "
            f"{len(found.duplicated)} duplicated, {len(found.broken)} broken; tried again: {load.refused}; "
            f"exits: {exits}",
            flush=True,
        )


def _wait_until_quiet(scene: Scene) -> None:
    """Wait for every batch to end and every event to arrive, however far away its next attempt is."""
    scene.wait(lambda: scene.query(LIVE) == [(0,)], "the end of every batch", seconds=QUIET_SECONDS)
    scene.wait(
        lambda: not scene.undelivered(),
        "the delivery of every event",
        seconds=QUIET_SECONDS,
        now_and_then=scene.skip_hours,
    )


def main() -> int:
    """Run the seeds, print the report; its last line is JSON. The status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.harness", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many schedules (default 10)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=20, help="faults in each schedule (default 20)")
    parser.add_argument("--kinds", nargs="+", choices=sorted(FAULTS), default=list(FAULTS), metavar="KIND")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, which then stay")
    arguments = parser.parse_args()
    report = Report()
    with contextlib.ExitStack() as stack:
        if arguments.keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-faults-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
            directory.chmod(0o755)  # Postgres may run as another user
        else:
            directory = arguments.keep.resolve()
        model = write_tiny_llama(directory / "model")
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            folder = directory / f"seed{seed}"
            folder.mkdir(parents=True)
            run_seed(seed, arguments.faults, arguments.kinds, folder, model, report)
    print("\n".join(report.lines()))
    print(report.last_line())
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
