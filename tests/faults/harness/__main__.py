"""`python -m tests.faults.harness --seeds 10 --faults 20`: run, break, check, report."""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.faults.harness import audit, cluster, embedded, invariants, report
from tests.faults.harness.embedded_faults import EMBEDDED_FAULTS, EmbeddedScene
from tests.faults.harness.faults import FAULTS
from tests.faults.harness.interactive import Interactive
from tests.faults.harness.load import Load
from tests.faults.harness.receiver import receiving
from tests.faults.harness.report import SeedReport
from tests.faults.harness.scene import RECOVERY_SECONDS, NotRecoveredError, Scene
from tests.faults.harness.schedule import plan
from tests.fixtures.tiny_llama import write_tiny_llama

QUIET_SECONDS = 600.0
CONTEXT = 512  # long enough for outputs that are saved before they are whole
LIVE = "SELECT count(*) FROM batches WHERE status IN ('pending', 'processing', 'cancelling')"
UNWRITTEN = "SELECT count(*) FROM batch_files WHERE stage <> 'done'"


def run_seed(seed: int, count: int, kinds: list[str], directory: Path, model: Path) -> SeedReport:
    """Run one schedule, against deployments of its own, and return what came of it."""
    said = SeedReport(seed)
    started = time.monotonic()
    planned = list(plan(seed, count, kinds))
    if apart := [(wait, kind, FAULTS[kind]) for wait, kind in planned if kind in FAULTS]:
        _run_part(said, apart, directory / "apart", model, cluster.running, Scene)
    if whole := [(wait, kind, EMBEDDED_FAULTS[kind]) for wait, kind in planned if kind in EMBEDDED_FAULTS]:
        _run_part(said, whole, directory / "whole", model, embedded.running, EmbeddedScene)
    said.seconds = round(time.monotonic() - started, 1)
    print(
        f"seed {seed}: {said.num_requests} requests in {said.seconds:.0f} s, {len(said.lost)} lost, "
        f"{len(said.duplicated)} duplicated, {len(said.broken)} broken; {said.counts}",
        flush=True,
    )
    return said


def _run_part(
    said: SeedReport,
    part: Sequence[tuple[float, str, Callable[[Any], float]]],
    directory: Path,
    model: Path,
    running: Callable[[Path, Path], AbstractContextManager[tuple[Any, str]]],
    scene_of: Callable[..., Scene],
) -> None:
    """Inject the faults of one kind of deployment into one, and add what came of it to the report."""
    directory.mkdir()
    with running(directory, model) as (deployment, secret), receiving(secret) as record:
        audit.install(deployment.postgres)
        scene = scene_of(deployment, record, random.Random(said.seed))
        load = Load(deployment, record.url, said.seed)
        interactive = Interactive(deployment, said.seed)
        load.start()
        interactive.start()
        scene.next_result()
        for number, (wait, kind, inject) in enumerate(part, 1):
            time.sleep(wait)
            try:
                seconds = inject(scene)
            except NotRecoveredError as error:
                said.broken.append(f"fault {number}, {kind}: {error}")
                seconds = RECOVERY_SECONDS
            said.faults.append((kind, round(seconds, 2)))
            print(
                f"seed {said.seed}, {directory.name}, {number}/{len(part)}: {kind}, {seconds:.2f} s",
                flush=True,
            )
        load.stop()
        interactive.stop()
        try:
            _wait_until_quiet(scene)
        except NotRecoveredError as error:
            said.broken.append(str(error))
        found = invariants.check(
            deployment.postgres, load.sent, interactive.answers, record, directory / "facts"
        )
        exits = {one.name: dict(Counter(one.exits)) for one in deployment.members.values() if one.exits}
        said.num_requests += found.num_requests
        said.lost += found.lost
        said.duplicated += found.duplicated
        said.broken += load.errors + interactive.errors + found.broken
        said.counts[directory.name] = found.counts | {
            "interactive": dict(interactive.endings),
            "tried again": load.refused,
            "exits": exits,
        }


def _wait_until_quiet(scene: Scene) -> None:
    """Wait for every batch to end and every event to arrive, however far away its next attempt is."""
    scene.wait(lambda: scene.query(LIVE) == [(0,)], "the end of every batch", seconds=QUIET_SECONDS)
    scene.wait(lambda: scene.query(UNWRITTEN) == [(0,)], "the files of every batch", seconds=QUIET_SECONDS)
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
    kinds = [*FAULTS, *EMBEDDED_FAULTS]
    parser.add_argument("--kinds", nargs="+", choices=sorted(kinds), default=kinds, metavar="KIND")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, which then stay")
    parser.add_argument(
        "--results",
        type=Path,
        help="a folder with a file for each seed: one that is there already is summed up and not run again",
    )
    arguments = parser.parse_args()
    seeds = []
    with contextlib.ExitStack() as stack:
        if arguments.keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="headrace-faults-", ignore_cleanup_errors=True)
            directory = Path(stack.enter_context(temporary))
            directory.chmod(0o755)  # Postgres may run as another user
        else:
            directory = arguments.keep.resolve()
        model = write_tiny_llama(directory / "model", max_position_embeddings=CONTEXT)
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            if arguments.results and (found := SeedReport.read(arguments.results, seed)):
                seeds.append(found)
                continue
            folder = directory / f"seed{seed}"
            folder.mkdir(parents=True)
            seeds.append(run_seed(seed, arguments.faults, arguments.kinds, folder, model))
            if arguments.results:
                arguments.results.mkdir(parents=True, exist_ok=True)
                seeds[-1].write(arguments.results)
    print("\n".join(report.lines(seeds)))
    print(report.last_line(seeds))
    return 0 if report.is_clean(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
