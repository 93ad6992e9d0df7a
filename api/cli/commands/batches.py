"""Defines the commands that look at batches and control them, and `headrace results`."""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from enum import StrEnum
from http import HTTPStatus
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import httpx
import typer

from api.cli.commands.submit_options import read_entries
from api.cli.comparing.outputs import lines_of
from api.cli.connection import Connection, RefusedError, address, connection, given, told
from api.cli.show import AsJson, fail, print_json, print_record, print_table
from api.cli.watch import wait_for_files, watch
from worker.contract.states import BatchStatus

COMPLETION_SECONDS = 2.0


class ResultOrder(StrEnum):
    """The order of results."""

    COMPLETION = "completion"
    INPUT = "input"


class ResultFormat(StrEnum):
    """The format of results."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def complete_batch(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the newest batches whose id begins so, for the completion of shells; none without an API."""
    options = context.find_root().params
    url = address(options.get("url"), options.get("port"))
    api = Connection(url, options.get("api_key"), COMPLETION_SECONDS)
    with suppress(RefusedError, httpx.HTTPError):
        page = api.call("GET", "/v1/batch", params={"limit": 100})
        found = [(batch["batch_id"], batch["status"]) for batch in page["data"]]
        return [one for one in found if one[0].startswith(incomplete)]
    return []


BatchId = Annotated[
    str,
    typer.Argument(
        help="The id, batch_..., that `headrace submit` has printed.", autocompletion=complete_batch
    ),
]


def status(
    context: typer.Context,
    batch_id: BatchId,
    follow: Annotated[bool, typer.Option("--watch", help="Show the progress until the batch ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of a batch."""
    api = connection(context)
    answer = watch(api, batch_id) if follow else _look(api, batch_id)
    if answer["status"] == "failed":
        with suppress(RefusedError):  # it was not made from a file
            answer["errors"] = api.call("GET", f"/v1/batches/{batch_id}")["errors"]
    show_batch(answer, as_json=as_json)


def list_batches(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100, help="The number of batches on a page.")] = 20,
    after: Annotated[
        str | None,
        typer.Option(help="The last batch of the page before.", autocompletion=complete_batch),
    ] = None,
    wanted: Annotated[
        BatchStatus | None, typer.Option("--status", help="List only batches with this status.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="List only batches of this name.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="List only batches with this metadata. May be repeated."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="An operator's option: the batches of this tenant, or `*` for all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List batches, the newest first."""
    params = given(limit=limit, after=after, status=wanted, name=name, tenant=tenant)
    entries = read_entries(metadata or ())
    params |= {f"metadata[{key}]": value for key, value in entries.items()}
    page = connection(context).call("GET", "/v1/batch", params=params)
    if as_json:
        print_json(page)
        return
    has_names = any(batch.get("name") for batch in page["data"])
    print_table(
        [
            "BATCH",
            *(["NAME"] if has_names else []),
            *(["TENANT"] if tenant else []),
            "STATUS",
            "PROGRESS",
            "DONE",
            "FAILED",
            "CREATED",
        ],
        (
            (
                batch["batch_id"],
                *([batch.get("name")] if has_names else []),
                *([batch["tenant"]] if tenant else []),
                batch["status"],
                f"{batch['progress']:.0%}",
                f"{batch['counts']['completed']}/{batch['counts']['total']}",
                batch["counts"]["failed"] or (batch.get("error") or {}).get("code", 0),
                batch["created_at"][:19].replace("T", " "),
            )
            for batch in page["data"]
        ),
    )
    if page.get("has_more") and page["data"]:
        only = "" if wanted is None else f" --status {wanted}"
        only += "" if name is None else f" --name {quote(name)}"
        only += "".join(f" --metadata {quote(entry)}" for entry in metadata or ())
        sys.stderr.write(f"more: headrace list{only} --after {page['data'][-1]['batch_id']}\n")


def results(
    context: typer.Context,
    batch_id: BatchId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file; with --after, append to it."),
    ] = None,
    follow: Annotated[bool, typer.Option(help="Go on until the batch has ended.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Print only results after this sequence number.")] = 0,
    as_files: Annotated[
        bool,
        typer.Option("--openai", help="Print the output and error files of a batch made from a file."),
    ] = False,
    order: Annotated[
        ResultOrder, typer.Option(help="`input`: in the order of the requests.")
    ] = ResultOrder.COMPLETION,
    with_requests: Annotated[
        bool, typer.Option("--with-requests", help="Print each result with its prompt and metadata.")
    ] = False,
    form: Annotated[
        ResultFormat, typer.Option("--format", help="JSON lines, or a table.")
    ] = ResultFormat.JSONL,
    as_json: AsJson = False,  # noqa: ARG001 - results are JSON lines with and without it
) -> None:
    """Print results as JSON lines, CSV or Parquet; also while the batch runs."""
    api = connection(context)
    params: dict[str, Any] = {"after": after, "order": order.value, "format": form.value}
    params |= ({"follow": 1} if follow else {}) | ({"include": "request"} if with_requests else {})
    if as_files and params != {"after": 0, "order": "completion", "format": "jsonl"}:
        fail("--openai prints whole files: it goes with neither --follow nor --after nor a form of results.")
    if output is not None:
        _check_writable(output)
    if form is not ResultFormat.JSONL:
        _print_table(api, batch_id, params, output)
        return
    if as_files:
        lines: Iterator[str] = chain.from_iterable(lines_of(api, path) for path in _file_paths(api, batch_id))
    else:
        lines = lines_of(api, f"/v1/batch/{batch_id}/results", **params)
    if output is None:
        for line in lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        return
    first = list(islice(lines, 1))  # an old file is overwritten only once the API has answered
    try:
        with output.open("a" if after else "w", encoding="utf-8") as file:
            for line in chain(first, lines):
                file.write(line + "\n")
                file.flush()
    except OSError as error:
        fail(f"Cannot write to {output}: {error.strerror}. The batch keeps its results: read them again.")


def _print_table(api: Connection, batch_id: str, params: dict[str, Any], output: Path | None) -> None:
    """Write a table of results to a file, or to standard output."""
    if output is None and params["format"] == ResultFormat.PARQUET and sys.stdout.isatty():
        fail("Parquet is no text: name a file with --output.")
    with api.stream(f"/v1/batch/{batch_id}/results", **params) as answer:
        try:
            with nullcontext(sys.stdout.buffer) if output is None else output.open("wb") as file:
                for piece in answer.iter_bytes():
                    file.write(piece)
        except OSError as error:
            fail(f"Cannot write to {output}: {error.strerror}. The batch keeps its results: read them again.")


def _check_writable(path: Path) -> None:
    """End the command if a file cannot be written there; touch nothing."""
    problem = None
    if path.is_dir():
        problem = "it is a directory"
    elif not path.parent.is_dir():
        problem = f"there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "you have no permission"
    if problem:
        fail(f"Cannot write to {path}: {problem}. No result was read.")


def _file_paths(api: Connection, batch_id: str) -> list[str]:
    try:
        batch = wait_for_files(api, batch_id)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        _look(api, batch_id)  # raises if there is no such batch
        fail(
            f"{batch_id} was not made from a file in OpenAI's format, so it has no output files."
            f" Run `headrace results {batch_id}` without --openai."
        )
    found = [batch["output_file_id"], batch["error_file_id"]]
    return [f"/v1/files/{file_id}/content" for file_id in found if file_id is not None]


def pause(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Pause a batch. Its running requests stop, and continue from there when you resume it."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/pause"), as_json=as_json)


def resume(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Resume a paused batch."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/resume"), as_json=as_json)


def reassign(
    context: typer.Context,
    batch_id: BatchId,
    model: Annotated[str, typer.Option(help="The model's name, or NAME@ and the beginning of its revision.")],
    as_json: AsJson = False,
) -> None:
    """Have another model run the requests of a batch that have no result."""
    path = f"/v1/batch/{batch_id}/reassign"
    show_batch(connection(context).call("POST", path, json={"model": model}), as_json=as_json)


def cancel(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Cancel a batch. The results that it has stay."""
    show_batch(connection(context).call("POST", f"/v1/batch/{batch_id}/cancel"), as_json=as_json)


def retry(
    context: typer.Context,
    batch_id: BatchId,
    cancelled: Annotated[
        bool, typer.Option("--cancelled", help="Run also the requests that were cancelled or have expired.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the failed requests of an ended batch again, as a new batch."""
    params = {"cancelled": cancelled}
    answer = connection(context).call("POST", f"/v1/batch/{batch_id}/retry", params=params)
    show_batch(answer, as_json=as_json)


def delete(context: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Delete an ended batch with its results."""
    connection(context).call("DELETE", f"/v1/batch/{batch_id}")
    if as_json:
        print_json({"batch_id": batch_id, "deleted": True})


def show_batch(answer: dict[str, Any], *, as_json: bool) -> None:
    """Print a batch as the API answered it."""
    if as_json:
        print_json(answer)
        return
    apart = {"outputs", "errors"}
    print_record({name: value for name, value in answer.items() if name not in apart and value is not None})
    if answer.get("errors"):
        sys.stdout.write(told(answer["errors"]["data"]) + "\n")


def _look(api: Connection, batch_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = api.call("GET", f"/v1/batch/{batch_id}", params={"include": "none"})
    return answer
