"""`headrace submit` and `headrace estimate`: the same file, for real or for a forecast."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.batch_commands import show_batch
from api.cli.connection import connection
from api.cli.prompt_file import PromptFileError, read_prompts
from api.cli.show import AsJson, fail, print_json, print_record
from api.cli.watch import watch

File = Annotated[
    Path,
    typer.Argument(
        help="A .jsonl file (objects with prompt or messages), or text, a prompt a line. -: standard input.",
        allow_dash=True,
    ),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens an output may have.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=JSON", help="Any other field of the request, such as seed=1."),
]


def submit(
    context: typer.Context,
    file: File,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    options: Option = None,
    callback_url: Annotated[str | None, typer.Option(help="Called when the batch has ended.")] = None,
    completion_window: Annotated[str | None, typer.Option(help="Such as 30m or 24h.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher runs sooner, among your own.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="With the same key, no second batch.")] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Show the progress until the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a file of prompts as a batch, and print its id."""
    body = _body(
        file,
        options,
        max_tokens=max_tokens,
        temperature=temperature,
        callback_url=callback_url,
        completion_window=completion_window,
        priority=priority,
    )
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    accepted = connection(context).call("POST", "/v1/batch/async", json=body, headers=headers)
    if follow:
        sys.stderr.write(f"{accepted['batch_id']}\n")
        ended = watch(connection(context), accepted["batch_id"])
        show_batch(ended, as_json=as_json)
        raise typer.Exit(0 if ended["status"] == "completed" else 1)
    if as_json:
        print_json(accepted)
    else:
        sys.stdout.write(f"{accepted['batch_id']}\n")


def estimate(
    context: typer.Context,
    file: File,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    options: Option = None,
    as_json: AsJson = False,
) -> None:
    """Say what a file of prompts would take, without submitting it."""
    body = _body(file, options, max_tokens=max_tokens, temperature=temperature)
    answer = connection(context).call("POST", "/v1/batch/estimate", json=body)
    if as_json:
        print_json(answer)
    else:
        print_record(answer)


def _body(file: Path, options: list[str] | None, **given: Any) -> dict[str, Any]:
    try:
        if str(file) == "-":
            lines = sys.stdin.readlines()
            name = "-.jsonl" if lines and lines[0].lstrip().startswith("{") else "-"
            prompts = read_prompts(name, lines)
        else:
            with file.open(encoding="utf-8") as opened:
                prompts = read_prompts(str(file), opened)
    except (PromptFileError, UnicodeDecodeError, OSError) as error:
        fail(str(error))
    body = prompts | {name: value for name, value in given.items() if value is not None}
    for option in options or []:
        name, separator, text = option.partition("=")
        if not separator:
            fail(f"--set {option}: write it as NAME=JSON, such as seed=1")
        body[name] = _json_or_text(text)
    return body


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
