"""Shows a live progress bar of one batch."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from api.cli.connection import Connection

LOOK_SECONDS = 0.5
LIVE = {"pending", "processing", "cancelling"}
EXIT_INTERRUPTED = 130  # as shells report a process that Ctrl-C has ended


def watch(connection: Connection, batch_id: str) -> dict[str, Any]:
    """Show a batch's progress on standard error until it has ended; return its final state."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[requests]} requests, {task.fields[tokens]} tokens{task.fields[eta]}"),
        TimeElapsedColumn(),
    )
    with _interruptible(batch_id), Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("pending", total=1.0, requests="", tokens="", eta="")
        while True:
            answer: dict[str, Any] = connection.call(
                "GET", f"/v1/batch/{batch_id}", params={"include": "none"}
            )
            counts, eta, waiting = answer["counts"], answer.get("eta_seconds"), answer.get("waiting")
            progress.update(
                bar,
                description=answer["status"] + (f" ({waiting['message']})" if waiting else ""),
                completed=answer["progress"],
                requests=f"{counts['total'] - counts['pending']}/{counts['total']}",
                tokens=answer["tokens"]["done"],
                eta="" if eta is None else f", {eta:.0f} s left",
            )
            if answer["status"] not in LIVE:
                return answer
            time.sleep(LOOK_SECONDS)


def wait_for_files(connection: Connection, batch_id: str) -> dict[str, Any]:
    """Wait until an ended batch's results are in its files; return its status, file ids and errors."""
    with _interruptible(batch_id):
        while True:
            answer = connection.call("GET", f"/v1/batches/{batch_id}")
            if answer["status"] in {"completed", "failed", "expired", "cancelled"}:
                return {
                    name: answer[name] for name in ("status", "output_file_id", "error_file_id", "errors")
                }
            time.sleep(LOOK_SECONDS)


@contextmanager
def _interruptible(batch_id: str) -> Iterator[None]:
    """On Ctrl-C, end the command with a sentence that says what becomes of the batch."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(
            f"\nThe batch goes on. `headrace status {batch_id} --watch` shows it again,"
            f" `headrace cancel {batch_id}` stops it.\n"
        )
        sys.exit(EXIT_INTERRUPTED)
