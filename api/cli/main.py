"""Defines `headrace`, the command line for everything that a deployment can do."""

import sys
from importlib import metadata
from typing import Annotated

import httpx
import typer
from sqlalchemy.exc import SQLAlchemyError

from api.cli.commands import administration, keys, tenants, webhooks
from api.cli.commands import batches as batch_commands
from api.cli.commands import calibrate as calibrate_command
from api.cli.commands import compare as compare_command
from api.cli.commands import deployment as deployment_commands
from api.cli.commands import experiments as experiment_commands
from api.cli.commands import submit as submit_command
from api.cli.commands import training as training_command
from api.cli.commands import tune as tune_command
from api.cli.commands.submit_options import SubmitCommand
from api.cli.connection import Connection, RefusedError, address
from api.cli.show import fail

app = typer.Typer(
    help="Run batch inference on your own machines. `up` starts a deployment; the other commands use one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {metadata.version('headrace')}")
        raise typer.Exit


@app.callback()
def connect(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(envvar="HEADRACE_URL", help="The address of the API. Default: this machine, at PORT."),
    ] = None,
    port: Annotated[int, typer.Option(envvar="PORT", hidden=True)] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="HEADRACE_API_KEY", help="The API key; `headrace keys create` makes one."),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep the API's URL and key for the command."""
    context.obj = Connection(address(url, port), api_key)


app.command("up", context_settings={"allow_extra_args": True})(deployment_commands.up)
app.command("autoscale")(deployment_commands.autoscale)
app.command("submit", cls=SubmitCommand)(submit_command.submit)
app.command("estimate")(submit_command.estimate)
app.command("status")(batch_commands.status)
app.command("list")(batch_commands.list_batches)
app.command("results")(batch_commands.results)
app.command("pause")(batch_commands.pause)
app.command("resume")(batch_commands.resume)
app.command("reassign")(batch_commands.reassign)
app.command("cancel")(batch_commands.cancel)
app.command("retry")(batch_commands.retry)
app.command("delete")(batch_commands.delete)
app.command("compare")(compare_command.compare)
app.command("tune")(tune_command.tune)
app.command("calibrate")(calibrate_command.calibrate)
app.command("training-text")(training_command.training_text)
app.command("experiment")(experiment_commands.experiment)
app.command("models")(deployment_commands.models)
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(keys.app, name="keys")
app.add_typer(tenants.app, name="tenants")
app.command("audit")(administration.audit_log)


def main() -> None:
    """Run a command; report an expected error in one sentence."""
    try:
        app()
    except RefusedError as error:
        fail(str(error))
    except httpx.TransportError as error:
        fail(f"The API does not answer: {error}. Run `headrace up`, or set HEADRACE_URL to its address.")
    except SQLAlchemyError as error:
        fail(f"The database does not answer: {str(error).splitlines()[0]}")
    except BrokenPipeError:  # `headrace results ... | head`
        sys.stderr.close()
        sys.exit(0)
