"""Defines `headrace compare`: which of two configurations gives the better outputs."""

from dataclasses import asdict
from typing import Annotated

import typer

from api.cli.connection import connection
from api.cli.outputs import OutputsError, read_expected, read_outputs
from api.cli.show import AsJson, fail, print_json, print_table
from worker.quality.comparison import RESOLUTION, Comparison, Verdict, compare_outputs
from worker.quality.sequential import sample_size

EXIT_WORSE = 3
DISCORDANCE = 0.2


def compare(
    context: typer.Context,
    a: Annotated[
        str | None,
        typer.Argument(metavar="[A]", help="A batch, or a file of results."),
    ] = None,
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The same requests under the other configuration.")
    ] = None,
    expected: Annotated[
        str | None,
        typer.Option(help="A file of requests with `expected`. Default: those of the batches."),
    ] = None,
    allowed_loss: Annotated[
        float, typer.Option(min=0, max=1, help="The share of right outputs that B may have less.")
    ] = 0.0,
    resolution: Annotated[
        float, typer.Option(min=0.0001, max=1, help="The loss beyond that which should be found.")
    ] = RESOLUTION,
    discordance: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Without A and B: the share of requests that only one side gets right."
        ),
    ] = DISCORDANCE,
    as_json: AsJson = False,
) -> None:
    """Compare the outputs of B with those of A. Ends with status 3 if B is worse.

    Without A and B, say how many requests a comparison needs to find a loss.
    """
    if allowed_loss + resolution > 1:
        fail("--allowed-loss and --resolution must not exceed 1 together.")
    if a is None:
        size = sample_size(resolution, discordance, allowed_loss=allowed_loss)
        if as_json:
            print_json({"requests": size})
        else:
            typer.echo(f"{size} requests with a reference answer find {allowed_loss + resolution:g} less.")
        return
    if b is None:
        fail("Name two batches or files.")
    api = connection(context)
    try:
        first, second = read_outputs(api, a), read_outputs(api, b)
        rules = first.expected | second.expected if expected is None else read_expected(expected)
    except OutputsError as error:
        fail(str(error))
    found = compare_outputs(
        first.outputs, second.outputs, rules, allowed_loss=allowed_loss, resolution=resolution
    )
    if not found.num_lines:
        fail(f"{a} and {b} have no request in common: requests are paired by custom_id, or by position.")
    if as_json:
        print_json(asdict(found))
    else:
        show_comparison(found)
    if found.verdict is Verdict.WORSE:
        raise typer.Exit(EXIT_WORSE)


def show_comparison(found: Comparison) -> None:
    """Print a comparison as a table, and its verdict as a sentence."""
    difference = None if found.difference is None else f"{found.difference:+.4f}"
    qualities = (_share(found.quality_a), _share(found.quality_b), difference)
    same, right = _range(*found.agreement_interval), _range(*found.difference_interval)
    rows = [
        ("same output", found.num_lines, None, None, _share(found.agreement), same),
        ("right output", found.num_scored, *qualities, right),
    ]
    print_table(["", "REQUESTS", "A", "B", "B-A", "INTERVAL"], rows)
    typer.echo(say(found))


def say(found: Comparison) -> str:
    """Return the verdict as a sentence."""
    if not found.num_scored:
        return "undecided: no request says what its output is expected to be"
    if found.verdict is Verdict.UNDECIDED:
        loss = found.allowed_loss + found.resolution
        if not found.more_lines:
            return f"undecided: a loss of {loss:g} would have been found"
        return f"undecided: {found.more_lines} more requests would find a loss of {loss:g}"
    sentences = {
        Verdict.BETTER: "better: B has more right outputs",
        Verdict.SAME: f"same: B loses less than {found.allowed_loss:g}",
        Verdict.WORSE: f"worse: B loses more than {found.allowed_loss:g}",
    }
    return sentences[found.verdict]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _range(low: float, high: float) -> str:
    return f"{low:.4f} to {high:.4f}"
