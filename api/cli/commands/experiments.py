"""Defines `headrace experiment`: what an experiment has shown, and what becomes of its other model."""

from typing import Annotated, Any

import typer

from api.cli.connection import connection
from api.cli.show import AsJson, fail, print_json, print_record, print_table


def experiment(
    context: typer.Context,
    experiment_id: Annotated[
        str, typer.Argument(help="The id, experiment_..., or that of its batch, batch_....")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Start an experiment on a batch: the other model, which a worker serves."),
    ] = None,
    share: Annotated[float, typer.Option(help="With --model: of the requests, that run under it too.")] = 0.1,
    promote: Annotated[
        bool, typer.Option("--promote", help="Have the other model run the rest of the batch.")
    ] = False,
    roll_back: Annotated[
        bool, typer.Option("--rollback", help="End it; a promoted batch gets its first model back.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what an experiment has shown so far; promote its other model, or roll that back; start one."""
    if promote + roll_back + (model is not None) > 1:
        fail("--model, --promote and --rollback exclude each other.")
    path = f"/v1/experiments/{experiment_id.replace('batch_', 'experiment_', 1)}"
    api = connection(context)
    if model is not None:
        body = {"batch_id": experiment_id, "model": model, "share": share}
        found = api.call("POST", "/v1/experiments", json=body)
    elif promote or roll_back:
        found = api.call("POST", f"{path}/{'promote' if promote else 'rollback'}")
    else:
        found = api.call("GET", path)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    means = ("failed", "valid", "output_length")
    intervals = {"interval": found["interval"]} | {
        f"{name}_interval": found[name]["interval"] for name in means if found[name]["interval"] is not None
    }
    apart = {"a", "b", "interval", *means}
    shown = {name: value for name, value in found.items() if name not in apart and value is not None}
    print_record(shown | {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in intervals.items()})
    names = ("model", "quality", "output_tokens", "device_seconds", "tokens_per_device_second")
    rows = []
    for side in ("a", "b"):
        one = found[side]
        cost = f"{one['cost']['amount']:g} {one['cost']['currency']}"
        rows.append(
            [side.upper(), *(one[name] for name in names), cost, *(found[name][side] for name in means)]
        )
    print_table(["", *(name.replace("_", " ").upper() for name in (*names, "cost", *means))], rows)
