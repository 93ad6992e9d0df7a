"""Defines the options of `headrace submit` for a table, which are too many beside its others."""

from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from api.cli.table_file import LineForm, Template

META = "headrace.table"
_options = typer.Typer(add_completion=False)


@_options.command()
def to_form(
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help="Make the prompts from the columns of a .parquet, .csv or .jsonl file: `Label: {text}`.",
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
) -> LineForm | None:
    """Return the form of a table's lines; None without a template. Raises PromptFileError."""
    if prompt is None:
        return None
    return LineForm(
        template=Template(prompt),
        body={},
        custom_id=custom_id,
        keep=tuple(keep) if keep else None,
        is_chat=chat or system is not None,
        system=system,
    )


class TableCommand(TyperCommand):
    """A command with these options beside its own; `given_form` returns what they ask for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._table = get_command(_options).params
        self.params.extend(self._table)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which does not see these options."""
        ctx.meta[META] = {one.name: ctx.params.pop(one.name) for one in self._table}
        return super().invoke(ctx)


def given_form(context: typer.Context, body: dict[str, Any]) -> LineForm | None:
    """Return the form that the options ask for; None: the file is no table. Raises PromptFileError.

    `body` holds what every line shares.
    """
    form = to_form(**context.meta[META])
    return None if form is None else replace(form, body=body)
