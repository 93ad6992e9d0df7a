"""Defines `headrace up`, `headrace autoscale` and `headrace models`."""

import os
import sys
from typing import Annotated

import typer

from api.cli.connection import connection
from api.cli.show import AsJson, print_json, print_table


def up(
    processes: Annotated[
        list[str] | None, typer.Argument(help="Start only these processes of the Procfile. Default: all.")
    ] = None,
) -> None:
    """Start all processes and run until Ctrl-C; also Postgres and Redis, unless their URLs are set.

    Settings may stand in the file .env of this directory. Variables that are set go before it.
    """
    _run(processes or [])


def autoscale() -> None:
    """Start and stop gpu workers of this machine as the deadlines need them, down to none.

    The dispatcher decides how many, if it has HEADRACE_MAX_WORKERS. With that, `headrace up` runs this too.
    """
    _run(["autoscale"])


def _run(processes: list[str]) -> None:
    python = sys.executable
    embedded = [python, "-m", "worker.embedded", "--env-file=.env"]
    # This process is replaced, so that signals reach worker.embedded as if it had been started by hand.
    os.execv(python, [*embedded, python, "-m", "worker.up", *processes])  # noqa: S606 - our own, no shell


def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that are served."""
    answer = connection(context).call("GET", "/v1/models")
    if as_json:
        print_json(answer)
    else:
        print_table(["MODEL", "OWNER"], ((model["id"], model.get("owned_by")) for model in answer["data"]))
