"""Defines `headrace status | list | results | pause | resume | reassign | cancel | retry`."""

import json
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.connection import Connection, RefusedError, connection, told
from api.cli.show import AsJson, fail, print_json, print_record, print_table
from api.cli.watch import wait_for_files, watch

CUT_OFF = '{"error":'  # the last line begins so if the lines end early; no result does

BatchId = Annotated[str, typer.Argument(help="batch_..., as `headrace submit` printed it.")]


def status(
    context: typer.Context,
    batch_id: BatchId,
    follow: Annotated[bool, typer.Option("--watch", help="Show the progress until the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a batch."""
    api = connection(context)
    answer = watch(api, batch_id) if follow else _look(context, batch_id)
    if answer["status"] == "failed":
        with suppress(RefusedError):  # it was not made from a file
            answer["errors"] = api.call("GET", f"/v1/batches/{batch_id}")["errors"]
    show_batch(answer, as_json=as_json)


def list_batches(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Batches a page.")] = 20,
    after: Annotated[str | None, typer.Option(help="The last batch of the page before.")] = None,
    as_json: AsJson = False,
) -> None:
    """List batches, the newest first."""
    params: dict[str, str | int] = {"limit": limit} | ({} if after is None else {"after": after})
    page = connection(context).call("GET", "/v1/batch", params=params)
    if as_json:
        print_json(page)
        return
    print_table(
        ["BATCH", "STATUS", "PROGRESS", "DONE", "FAILED", "CREATED"],
        (
            (
                batch["batch_id"],
                batch["status"],
                f"{batch['progress']:.0%}",
                f"{batch['counts']['completed']}/{batch['counts']['total']}",
                batch["counts"]["failed"],
                batch["created_at"][:19].replace("T", " "),
            )
            for batch in page["data"]
        ),
    )
    if page.get("has_more") and page["data"]:
        sys.stderr.write(f"more: headrace list --after {page['data'][-1]['batch_id']}\n")


def results(
    context: typer.Context,
    batch_id: BatchId,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on until the batch has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only those after this sequence number.")] = 0,
    as_files: Annotated[
        bool, typer.Option("--openai", help="The output file and the error file of a batch made from a file.")
    ] = False,
    as_json: AsJson = False,  # noqa: ARG001 - results are JSON lines with and without it
) -> None:
    """Print results in order of completion, as JSON lines; also while the batch runs."""
    api = connection(context)
    if as_files:
        if follow or after:
            fail("--openai prints whole files: it goes with neither --follow nor --after")
        paths, params = _file_paths(api, batch_id), {}
    else:
        paths, params = (
            [f"/v1/batch/{batch_id}/results"],
            {"after": after} | ({"follow": 1} if follow else {}),
        )
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as file:
        for path in paths:
            with api.stream(path, **params) as answer:
                for line in answer.iter_lines():
                    if line.startswith(CUT_OFF):
                        raise RefusedError(json.loads(line)["error"]["message"])
                    file.write(line + "\n")
                    file.flush()


def _file_paths(api: Connection, batch_id: str) -> list[str]:
    batch = wait_for_files(api, batch_id)
    found = [batch["output_file_id"], batch["error_file_id"]]
    return [f"/v1/files/{file_id}/content" for file_id in found if file_id is not None]


def pause(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Pause a batch: its running requests stop, and continue from there once it is resumed."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/pause"), as_json=as_json)


def resume(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Resume a paused batch."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/resume"), as_json=as_json)


def reassign(
    context: typer.Context,
    batch_id: BatchId,
    model: Annotated[str, typer.Option(help="Its name, or name@ and the beginning of its revision.")],
    as_json: AsJson = False,
) -> None:
    """Have another model run the requests of a batch that have no result."""
    path = f"/v1/batch/{batch_id}/reassign"
    show_batch(connection(context).call("POST", path, json={"model": model}), as_json=as_json)


def cancel(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Cancel a batch; results that exist stay."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/cancel"), as_json=as_json)


def retry(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Run the failed requests of a batch again."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/retry"), as_json=as_json)


def show_batch(answer: dict[str, Any], *, as_json: bool) -> None:
    """Print a batch as the API answered it."""
    if as_json:
        print_json(answer)
        return
    apart = {"outputs", "errors"}
    print_record({name: value for name, value in answer.items() if name not in apart and value is not None})
    if answer.get("errors"):
        sys.stdout.write(told(answer["errors"]["data"]) + "\n")


def _look(context: typer.Context, batch_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = connection(context).call(
        "GET", f"/v1/batch/{batch_id}", params={"include": "none"}
    )
    return answer
