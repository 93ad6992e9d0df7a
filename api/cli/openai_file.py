"""Uploads files of any size in OpenAI's batch format, unchanged, and makes batches of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import wrap_file

from api.cli.connection import Connection
from api.cli.prompt_file import PromptFileError

FIELDS = {"method", "url", "body"}
DEFAULT_WINDOW = "24h"
UPLOAD_SECONDS = 3600.0


def endpoint_of(line: str) -> str | None:
    """Return the endpoint that a line of this format names; None if the line has another format."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not value.keys() >= FIELDS:
        return None
    return str(value["url"])


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise PromptFileError for an option that each line sets for itself."""
    for option in ("max_tokens", "temperature"):
        if option in options:
            flag = f"--{option.replace('_', '-')}"
            raise PromptFileError(f"{flag}: leave it out. Each line of {name} has its own in `body`.")


def submit_file(
    connection: Connection,
    file: BinaryIO,
    *,
    name: str,
    endpoint: str,
    options: Mapping[str, Any],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """Upload a file and make a batch of it; return the batch as /v1/batches answers it.

    Raises:
        RefusedError: some lines are wrong, which the message names, or an option is.
        PromptFileError: an option is given that each line sets for itself.

    """
    check_options(name, options)
    with _shown(file) as shown:
        uploaded = connection.call(
            "POST",
            "/v1/files",
            data={"purpose": "batch"},
            files={"file": (Path(name).name, shown)},
            timeout=UPLOAD_SECONDS,
        )
    body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": DEFAULT_WINDOW}
    batch: dict[str, Any] = connection.call(
        "POST", "/v1/batches", json=body | dict(options), headers=dict(headers)
    )
    return batch


@contextmanager
def _shown(file: BinaryIO) -> Iterator[BinaryIO]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield file
        return
    size = file.seek(0, 2)
    file.seek(0)
    with wrap_file(file, size, description="uploading", console=console, transient=True) as shown:
        yield shown
