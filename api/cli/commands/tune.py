"""Defines `headrace tune`."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from api.cli.show import EXIT_FAILED, AsJson, fail, print_json, print_record
from api.cli.tuning import SAMPLE, Tuning, has_database, measured, open_search, prepared
from worker.drawing import NEEDED
from worker.settings import take_env_file
from worker.tuning.measuring import MeasuredSetting
from worker.tuning.optimizing import optimize
from worker.tuning.records import RUNNING, Objective, TrialRecord
from worker.tuning.report import summary, write_csv, write_environment, write_png
from worker.tuning.space import is_same
from worker.tuning.trial_process import TrialFailedError

if TYPE_CHECKING:
    from worker.tuning.study import Search  # needs Optuna, which is in an extra

CONCURRENCY = 8  # of optimizing to a latency
COLUMNS = ("TRIAL", "TOKENS/S", "P95 MS", "MIB", "QUALITY LOSS", "STATE", "SETTINGS")
SHOWN_TRIALS = 30


def tune(
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|tenant:NAME[:NUMBER]",
            help="A file of lines of a batch, perhaps with `expected` answers, or a sample of what a tenant"
            f" has stored, {SAMPLE} requests at most; it must allow that (`tenants set NAME --reuse`)."
            " Default: the demo's.",
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="A checkpoint. Default: HEADRACE_MODEL. Repeated: others to choose from, such as the first"
            " with weights in int4."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials that the study has at its end.")] = 30,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Requests in the engine at once. Default: all; {CONCURRENCY} with a target latency."
        ),
    ] = None,
    max_latency_p95: Annotated[
        float | None,
        typer.Option(min=0, help="Milliseconds from submission to end for 95% of requests, at most."),
    ] = None,
    max_quality_loss: Annotated[
        float | None, typer.Option(min=0, max=1, help="The interval of the loss must lie below it.")
    ] = None,
    min_throughput: Annotated[float | None, typer.Option(min=0, help="Output tokens a second.")] = None,
    target_latency_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Apply optimizations one by one until the latency is reached; no search."),
    ] = None,
    target_quality: Annotated[float, typer.Option(min=0, max=1, help="With --target-latency-ms.")] = 0.98,
    out: Annotated[Path, typer.Option(help="The folder for pareto.csv and pareto.png.")] = Path(
        ".cache/tuning"
    ),
    env_file: Annotated[
        Path, typer.Option(help="The environment file that gets the best settings; `up` reads .env.")
    ] = Path(".env"),
    as_json: AsJson = False,
) -> None:
    """Find the engine's fastest settings for a workload, each measured for speed and for quality.

    Settings may stand in the file .env of this directory, as for `up`. Variables that are set go before it.
    """
    take_env_file(Path(".env"))
    given = partial(prepared, workload, model or ())
    if target_latency_ms is not None:
        with given(concurrency or CONCURRENCY) as tuning:
            _optimize(tuning, target_latency_ms, target_quality, env_file, as_json=as_json)
        return
    if not has_database():
        _start_with_a_database()
    objective = Objective(max_latency_p95, max_quality_loss, min_throughput)
    with given(concurrency) as tuning, open_search(tuning, objective) as search:
        _search(tuning, search, trials, out, env_file, as_json=as_json)


def _search(
    tuning: Tuning, search: "Search", trials: int, out: Path, env_file: Path, *, as_json: bool
) -> None:
    measurer = tuning.measurer
    measured(measurer.reference)
    with shown(search) as changed:
        search.run(trials, measurer, changed)
    winner = search.winner()
    _write_front(out, search, winner)
    if winner is None:
        fail(f"None of {search.num_ended} trials meets the constraints. {out / 'pareto.csv'} has the best.")
    # Once more: the fastest of many trials was also lucky.
    before = after = measured(lambda: measurer.measure(tuning.current))
    if not is_same(winner.setting, tuning.current):
        after = measured(lambda: measurer.measure(winner.setting))
    write_environment(env_file, tuning.variables(winner.setting))
    found = summary(before, after, search.num_ended)
    if as_json:
        print_json(found)
    else:
        print_record(found | {"settings": str(env_file), "front": str(out / "pareto.csv")})


def _optimize(
    tuning: Tuning, target_latency_ms: float, target_quality: float, env_file: Path, *, as_json: bool
) -> None:
    def told(name: str, found: MeasuredSetting, is_kept: bool) -> None:
        result, quality = found.result, 1 - found.loss.mean
        end = "" if is_kept else ", not kept"
        sys.stderr.write(f"{name}: {result.latency_p95_ms:.1f} ms, quality {quality:.4f}{end}\n")

    def failed(name: str, error: TrialFailedError) -> None:
        sys.stderr.write(f"{name}: failed, not kept: {error}\n")

    device, measurer = tuning.config.device, tuning.measurer
    try:
        found = optimize(
            target_latency_ms, target_quality, measurer=measurer, device=device, told=told, failed=failed
        )
    except TrialFailedError as error:
        fail(f"The engine does not run this workload: {error}")
    write_environment(env_file, tuning.variables(found.setting))
    if as_json:
        print_json(found.to_json())
    else:
        print_record(found.to_json() | {"settings": str(env_file)})
    if not found.is_met:
        sys.stderr.write("The target was not reached.\n")
        raise typer.Exit(EXIT_FAILED)


def _start_with_a_database() -> None:
    """Replace this process by the same command beside a Postgres of its own."""
    command = [sys.executable, "-m", "api.cli", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-m", "worker.embedded", *command])  # noqa: S606 - no shell


def _write_front(folder: Path, search: "Search", winner: TrialRecord | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    front = search.front()
    write_csv(folder / "pareto.csv", front)
    if not write_png(folder / "pareto.png", search.records, front, winner):
        sys.stderr.write(f"pareto.png {NEEDED}\n")


@contextmanager
def shown(search: "Search") -> Iterator[Callable[[], None]]:
    """Show the trials while they run, on standard error: a live table, or a line for each that has ended."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(_table(search.records), console=console, auto_refresh=False) as live:
            yield lambda: live.update(_table(search.records), refresh=True)
        return
    told = {one.number for one in search.records if one.state != RUNNING}

    def tell() -> None:
        for one in search.records:
            if one.state != RUNNING and one.number not in told:
                told.add(one.number)
                sys.stderr.write("  ".join(_cells(one)) + "\n")

    yield tell


def _table(records: Sequence[TrialRecord]) -> Table:
    table = Table(*COLUMNS, box=None, pad_edge=False, header_style="bold")
    for record in records[-SHOWN_TRIALS:]:
        table.add_row(*_cells(record))
    return table


def _cells(record: TrialRecord) -> list[str]:
    """Return a trial as cells of the table."""
    named = {name.removeprefix("HEADRACE_").lower(): value for name, value in record.setting.items() if value}
    settings = " ".join(f"{name}={value}" for name, value in named.items())
    found = record.figures
    if found is None:
        return [str(record.number), "-", "-", "-", "-", record.problem or record.state, settings]
    return [
        str(record.number),
        f"{found.tokens_per_second:.0f}",
        f"{found.latency_p95_ms:.0f}",
        f"{found.peak_memory_bytes >> 20}",
        f"{100 * found.loss:.2f}% [{100 * found.loss_low:.1f}, {100 * found.loss_high:.1f}]",
        record.state,
        settings,
    ]
