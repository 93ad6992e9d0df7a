"""Defines `headrace submit` and `headrace estimate`, which read the same files of prompts."""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, BinaryIO

import typer

from api.cli.commands.batches import show_batch
from api.cli.commands.submit_options import given_fields, given_form
from api.cli.connection import Connection, RefusedError, connection, given
from api.cli.openai_file import DEFAULT_WINDOW, UPLOAD_SECONDS, check_options, endpoint_of, submit_file
from api.cli.prompt_file import PromptFile, PromptFileError, json_or_text, read_openai_lines, read_prompts
from api.cli.show import AsJson, fail, print_json, print_record
from api.cli.watch import wait_for_files, watch
from api.table_lines import LineForm, TableError, lines_of

STDIN_NAMES = {"-", "-.jsonl"}

File = Annotated[
    Path,
    typer.Argument(
        help="A .jsonl file (an object with `prompt` or `messages` on each line, or OpenAI's batch format,"
        " which is uploaded), a .csv file whose header names a column `prompt`, a text file with a prompt on"
        " each line, or, with --prompt, a table as .parquet, .csv or .jsonl. Each may be"
        " compressed (.gz). `-` reads standard input.",
        allow_dash=True,
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A file, as `headrace estimate` takes it, or the URI of an object in a bucket that the operator"
        " allows: s3://BUCKET/rows.jsonl. With --prompt, a table as .parquet, .csv or .jsonl. `-` reads"
        " standard input.",
    ),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The most tokens that an output may have.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=JSON",
        help="Set any other field of the request, for example seed=1. May be repeated.",
    ),
]


def submit(
    context: typer.Context,
    source: Source,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    options: Option = None,
    callback_url: Annotated[
        str | None, typer.Option(help="The URL that Headrace calls when the batch has ended.")
    ] = None,
    completion_window: Annotated[
        str | None, typer.Option(help="The time after which the batch expires, for example 30m or 24h.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=-100, max=100, help="Higher runs sooner, among your own batches. Default: 0."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A text that you choose: the same text never makes a second batch.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Show the progress until the batch ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a file of prompts, or an object in a bucket, as a batch, and print its id."""
    asked = given(callback_url=callback_url, completion_window=completion_window, priority=priority)
    asked |= given_fields(context)
    of_requests = given(max_tokens=max_tokens, temperature=temperature) | _read_options(options)
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    api = connection(context)
    file = Path(source)
    with _told_plainly(file):
        form = given_form(context, of_requests)
        if "://" in source:
            batch = _submit_uri(api, source, form, asked | ({} if form else of_requests), headers)
        elif form is not None:
            batch = _submit_table(api, file, form, asked, headers)
        else:
            batch = _submit_prompts(api, file, asked | of_requests, headers)
    is_from_file = "id" in batch
    batch_id = batch["id" if is_from_file else "batch_id"]
    if follow:
        sys.stderr.write(f"{batch_id}\n")
        ended = watch(api, batch_id)
        if is_from_file:
            ended |= wait_for_files(api, batch_id)
        show_batch(ended, as_json=as_json)
        raise typer.Exit(0 if ended["status"] == "completed" else 1)
    if as_json:
        print_json(batch)
    else:
        sys.stdout.write(f"{batch_id}\n")


def _submit_prompts(
    api: Connection, file: Path, asked: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    with _reading(file) as source:
        if source.endpoint is None:
            if "output_uri" in asked:
                fail("--output-uri goes with files in OpenAI's format, tables (--prompt) and URIs.")
            return _post(api, "/v1/batch/async", source.prompts(), asked, headers)
        with source.opened() as opened:
            return submit_file(
                api, opened, name=source.name, endpoint=source.endpoint, options=asked, headers=headers
            )


def _submit_table(
    api: Connection, file: Path, form: LineForm, asked: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Write the lines of a table to a temporary file, and upload that."""
    if "model" not in form.body:
        served = api.call("GET", "/v1/models")["data"][0]["id"]
        form = replace(form, body={"model": served} | dict(form.body))
    with TemporaryFile() as lines:
        lines.writelines(lines_of(file, form))
        lines.seek(0)
        name = f"{file.name}.jsonl"
        return submit_file(api, lines, name=name, endpoint=form.endpoint, options=asked, headers=headers)


def _submit_uri(
    api: Connection, uri: str, form: LineForm | None, asked: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Make a batch of an object in a bucket, which the API reads; `form` says how a row becomes a request."""
    body: dict[str, Any] = {"input_uri": uri, "endpoint": "/v1/chat/completions"}
    if form is not None:
        table = given(prompt=form.template.text, custom_id=form.custom_id, keep=form.keep, system=form.system)
        table |= {"reorder_fields": True} if form.reorder_fields else {}
        body |= {"endpoint": form.endpoint, "table": table | {"body": form.body}}
    body |= {"completion_window": DEFAULT_WINDOW} | asked
    batch: dict[str, Any] = api.call(
        "POST", "/v1/batches", json=body, headers=headers, timeout=UPLOAD_SECONDS
    )
    return batch


def _post(
    api: Connection, path: str, read: PromptFile, asked: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Send a file's requests; name the line of a request that is refused."""
    if skipped := read.blank_lines():
        sys.stderr.write(f"{skipped}\n")
    try:
        answer: dict[str, Any] = api.call(
            "POST", path, json={read.member: read.items} | asked, headers=headers
        )
    except RefusedError as error:
        if error.code == "body_too_large":
            fail(f"{error} `headrace submit` uploads files in OpenAI's batch format, which may be larger.")
        fail(read.explain(str(error)))
    return answer


def estimate(
    context: typer.Context,
    file: File,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    options: Option = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the tokens, time and cost of a file of prompts without submitting it."""
    asked = given(max_tokens=max_tokens, temperature=temperature) | _read_options(options)
    api = connection(context)
    with _told_plainly(file), _reading(file) as source:
        if source.endpoint is None:
            answer = _post(api, "/v1/batch/estimate", source.prompts(), asked)
        else:
            check_options(source.name, asked)
            lines = read_openai_lines(source.name, source.text)
            answer = _post(api, "/v1/batches/estimate", lines, asked)
    if as_json:
        print_json(answer)
    else:
        print_record(answer)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An open file of prompts; `endpoint` is None unless its lines are in OpenAI's batch format."""

    name: str
    endpoint: str | None
    text: IO[str]

    def prompts(self) -> PromptFile:
        """Return the file's prompts."""
        return read_prompts(self.name.removesuffix(".gz"), self.text)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Yield the file, opened to read its bytes from the start."""
        if self.name in STDIN_NAMES:
            yield BytesIO(self.text.read().encode())
        else:
            with Path(self.name).open("rb") as file:
                yield file


@contextmanager
def _reading(file: Path) -> Iterator[SourceFile]:
    """Yield the file with its format, read off its first line."""
    with _text_of(file) as text:
        first = next((line for line in text if line.strip()), "")
        text.seek(0)
        name = "-.jsonl" if str(file) == "-" and first.lstrip().startswith("{") else str(file)
        is_jsonl = name.removesuffix(".gz").endswith(".jsonl")
        yield SourceFile(name, endpoint_of(first) if is_jsonl else None, text)


@contextmanager
def _told_plainly(file: Path) -> Iterator[None]:
    """End the command with a sentence if the file cannot be read."""
    try:
        yield
    except UnicodeDecodeError as error:
        fail(f"{file} is not text in UTF-8: {error}")
    except (PromptFileError, TableError) as error:
        fail(str(error))
    except (OSError, EOFError, zlib.error) as error:  # the last two: gzip that is cut off or damaged
        fail(f"Cannot read {file}: {getattr(error, 'strerror', None) or error}")


def _text_of(file: Path) -> AbstractContextManager[IO[str]]:
    if str(file) == "-":
        return nullcontext(StringIO(sys.stdin.read()))
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig")


def _read_options(options: list[str] | None) -> dict[str, Any]:
    found = {}
    for option in options or []:
        name, separator, text = option.partition("=")
        if not separator:
            fail(f"--set {option}: write NAME=JSON, for example seed=1.")
        found[name] = json_or_text(text)
    return found
