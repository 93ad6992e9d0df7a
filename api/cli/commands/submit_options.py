"""Defines the options of `headrace submit` for a table and for the batch, too many beside its others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from api.cli.connection import given
from api.cli.prompt_file import json_or_text
from api.cli.show import fail
from api.table_lines import LineForm, Template

META = "headrace.options"
_of_tables, _of_batches = typer.Typer(add_completion=False), typer.Typer(add_completion=False)


@_of_tables.command()
def to_form(
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help="Make the prompts from the columns of a .parquet, .csv or .jsonl file: `Label: {text}`."
            " `{*}` stands for all columns that are used nowhere else, as a JSON object.",
        ),
    ] = None,
    custom_id: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of unique ids. Default: row-0, row-1, and so on."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column to get back as metadata beside the results. May be repeated. Default: every column"
            " that --prompt and --custom-id do not name.",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send each prompt as a chat message.")] = False,
    system: Annotated[
        str | None, typer.Option(help="The system message of each chat; implies --chat.")
    ] = None,
    reorder_fields: Annotated[
        bool,
        typer.Option(
            "--reorder-fields",
            help="Let the fields of `{*}` come in any order, another one in each row, so that prompts begin"
            " alike and are computed faster.",
        ),
    ] = False,
) -> LineForm | None:
    """Return the form of a table's lines; None without a template. Raises TableError."""
    if prompt is None:
        return None
    return LineForm(
        template=Template(prompt),
        body={},
        custom_id=custom_id,
        keep=tuple(keep) if keep else None,
        is_chat=chat or system is not None,
        system=system,
        reorder_fields=reorder_fields,
    )


@_of_batches.command()
def to_fields(
    name: Annotated[
        str | None, typer.Option(help="A name for the batch, by which `headrace list` finds it.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Metadata of the batch. May be repeated."),
    ] = None,
    start_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the batch may start: a time with its zone, such as 2026-11-21T22:00:00+01:00, or a"
            " number of seconds from now. Default: now.",
        ),
    ] = None,
    output_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Write the results there too, as JSON lines, CSV or Parquet by the suffix:"
            " s3://BUCKET/{batch_id}.parquet. For files in OpenAI's format, tables and URIs.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Return the fields of a batch that the options ask for."""
    return given(
        name=name,
        metadata=read_entries(metadata) if metadata else None,
        start_after=None if start_after is None else json_or_text(start_after),
        output_uri=output_uri,
    )


def read_entries(entries: Sequence[str]) -> dict[str, str]:
    """Return the metadata that options such as `--metadata dataset=docstrings` give."""
    found = {}
    for entry in entries:
        key, separator, value = entry.partition("=")
        if not separator:
            fail(f"--metadata {entry}: write KEY=VALUE, for example dataset=docstrings.")
        found[key] = value
    return found


class SubmitCommand(TyperCommand):
    """A command with these options beside its own, for `given_form` and `given_fields`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._groups = {app: get_command(app).params for app in (_of_batches, _of_tables)}
        for params in self._groups.values():
            self.params.extend(params)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which does not see these options."""
        ctx.meta[META] = {
            app: {one.name: ctx.params.pop(one.name) for one in params}
            for app, params in self._groups.items()
        }
        return super().invoke(ctx)


def given_fields(context: typer.Context) -> dict[str, Any]:
    """Return the fields of a batch that the options ask for."""
    return to_fields(**context.meta[META][_of_batches])


def given_form(context: typer.Context, body: dict[str, Any]) -> LineForm | None:
    """Return the form that the options ask for; None: the file is no table. Raises TableError.

    `body` holds what every line shares.
    """
    form = to_form(**context.meta[META][_of_tables])
    return None if form is None else replace(form, body=body)
