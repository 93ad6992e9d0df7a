"""Defines `headrace compare`: which of two configurations gives the better outputs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from api.cli.comparing.judge import Judged, Judgement, choose, judge_outputs
from api.cli.comparing.outputs import OutputsError, Sides
from api.cli.comparing.served import ADDRESS, Served, find_served
from api.cli.comparing.texts import compare_on
from api.cli.connection import connection
from api.cli.show import AsJson, fail, print_json, print_table
from worker.quality.comparison import RESOLUTION, Comparison, Verdict, compare_outputs, compare_scores
from worker.quality.sequential import sample_size
from worker.quality.text import TextComparison

EXIT_WORSE = 3
DISCORDANCE = 0.2
MOST_JUDGED = 200

First = Annotated[
    str | None, typer.Argument(metavar="[A]", help=f"A batch, or a file of results; with --text: {ADDRESS}")
]
Second = Annotated[
    str | None, typer.Argument(metavar="[B]", help="The same requests under the other configuration.")
]
RequestsFile = Annotated[
    str | None, typer.Option(help="A file of requests with `expected`. Default: those of the batches.")
]
Text = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Compare what the models A and B make of this text."),
]
Judge = Annotated[str | None, typer.Option(metavar="MODEL", help=f"Judges outputs that differ. {ADDRESS}")]
Key = Annotated[
    str | None,
    typer.Option(envvar="HEADRACE_OTHER_API_KEY", help="For another API than that of HEADRACE_URL."),
]
MostJudged = Annotated[int, typer.Option(min=1, help="Requests that are judged, at most.")]
Loss = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="The share of right outputs that B may have less; of a perplexity, more."
    ),
]
Resolution = Annotated[
    float, typer.Option(min=0.0001, max=1, help="The loss beyond that which should be found.")
]
Discordance = Annotated[
    float,
    typer.Option(min=0, max=1, help="Without A and B: the share of requests that only one side gets right."),
]


def compare(
    context: typer.Context,
    a: First = None,
    b: Second = None,
    expected: RequestsFile = None,
    text: Text = None,
    judge: Judge = None,
    other_api_key: Key = None,
    most_judged: MostJudged = MOST_JUDGED,
    allowed_loss: Loss = 0.0,
    resolution: Resolution = RESOLUTION,
    discordance: Discordance = DISCORDANCE,
    as_json: AsJson = False,
) -> None:
    """Compare the outputs of B with those of A. Ends with status 3 if B is worse.

    Without A and B, say how many requests a comparison needs to find a loss.
    """
    if allowed_loss + resolution > 1:
        fail("--allowed-loss and --resolution must not exceed 1 together.")
    if a is None:
        size = sample_size(resolution, discordance, allowed_loss=allowed_loss)
        _say_size(size, allowed_loss + resolution, as_json=as_json)
        return
    if b is None:
        fail("Name two batches or files.")
    own = connection(context)
    preferred = None
    try:
        if text is not None:
            models = [find_served(own, name, other_api_key) for name in (a, b)]
            found = compare_on(models[0], models[1], text.read_text(encoding="utf-8", errors="replace"))
            _end_on_text(found, allowed_loss, as_json=as_json)
            return
        sides = Sides.read(own, a, b, expected)
        options = {"allowed_loss": allowed_loss, "resolution": resolution}
        compared = compare_outputs(sides.a, sides.b, sides.requests.expected, **options)
        report = asdict(compared)
        if judge is not None:
            judgement = _judge(sides, find_served(own, judge, other_api_key), most_judged)
            preferred = compare_scores(judgement.scores_a, judgement.scores_b, **options)
            asked = {"num_asked": judgement.num_asked, "num_unclear": judgement.num_unclear}
            report["judge"] = asdict(preferred) | asked
    except OutputsError as error:
        fail(str(error))
    if as_json:
        print_json(report)
    else:
        show_comparison(compared, preferred)
    if Verdict.WORSE in {compared.verdict, preferred and preferred.verdict}:
        raise typer.Exit(EXIT_WORSE)


def _say_size(size: int, loss: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"requests": size})
    else:
        typer.echo(f"{size} requests with a reference answer find {loss:g} less.")


def _judge(sides: Sides, served: Served, most: int) -> Judgement:
    """Have a model judge outputs of the same requests; raises OutputsError if no request is known."""
    questions = sides.requests.questions
    names = choose([name for name in sides.a if name in sides.b and name in questions], most)
    if not names:
        raise OutputsError("A judge reads requests: name batches, or a file of requests by --expected.")
    return judge_outputs(served, [Judged(questions[name], sides.a[name], sides.b[name]) for name in names])


def _end_on_text(found: TextComparison, allowed_loss: float, *, as_json: bool) -> None:
    """Print what two models make of a text, and end the command if B is worse."""
    low, high = found.change_interval
    if as_json:
        print_json(asdict(found))
    else:
        rows = [
            (
                "perplexity",
                f"{found.perplexity_a:.4f}",
                f"{found.perplexity_b:.4f}",
                f"{found.change:+.4f}",
                _range(low, high),
            ),
            ("divergence", None, None, f"{found.divergence:.6f}", _range(*found.divergence_interval)),
            ("same likeliest token", None, None, f"{found.agreement:.4f}", None),
        ]
        print_table([f"{found.num_tokens} TOKENS", "A", "B", "CHANGE", "INTERVAL"], rows)
    if low > allowed_loss:
        raise typer.Exit(EXIT_WORSE)


def show_comparison(found: Comparison, preferred: Comparison | None = None) -> None:
    """Print a comparison, and the preferences of a judge, as a table, and the verdicts as sentences."""
    same = _range(*found.agreement_interval)
    rows = [
        ("same output", found.num_lines, None, None, _share(found.agreement), same),
        _row("right output", found),
    ]
    if preferred is not None:
        rows.append(_row("preferred output", preferred))
    print_table(["", "REQUESTS", "A", "B", "B-A", "INTERVAL"], rows)
    if found.num_scored or preferred is None:
        typer.echo(say(found))
    if preferred is not None:
        typer.echo(f"judged {say(preferred, 'preferred')}")


def _row(name: str, found: Comparison) -> tuple[object, ...]:
    difference = None if found.difference is None else f"{found.difference:+.4f}"
    interval = _range(*found.difference_interval)
    return name, found.num_scored, _share(found.quality_a), _share(found.quality_b), difference, interval


def say(found: Comparison, kind: str = "right") -> str:
    """Return the verdict as a sentence; `kind` is what outputs are that are good."""
    if not found.num_scored:
        return "undecided: no request says what its output is expected to be"
    if found.verdict is Verdict.UNDECIDED:
        loss = found.allowed_loss + found.resolution
        if not found.more_lines:
            return f"undecided: a loss of {loss:g} would have been found"
        return f"undecided: {found.more_lines} more requests would find a loss of {loss:g}"
    sentences = {
        Verdict.BETTER: f"better: B has more {kind} outputs",
        Verdict.SAME: f"same: B loses less than {found.allowed_loss:g}",
        Verdict.WORSE: f"worse: B loses more than {found.allowed_loss:g}",
    }
    return sentences[found.verdict]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _range(low: float, high: float) -> str:
    return f"{low:.4f} to {high:.4f}"
