"""The checkpoint that inputs are read for: a small one with weights and a chat template."""

import atexit
import contextlib
import tempfile
from functools import cache
from pathlib import Path

from api.inputs.checkpoint import Checkpoint
from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.tiny_llama import write_tiny_llama

_stack = contextlib.ExitStack()
atexit.register(_stack.close)


@cache
def folder() -> Path:
    """Return a directory of this process, gone with it."""
    temporary = tempfile.TemporaryDirectory(prefix="headrace-fuzz-", ignore_cleanup_errors=True)
    return Path(_stack.enter_context(temporary))


@cache
def model() -> Path:
    """Return the checkpoint's directory."""
    directory = write_tiny_llama(folder() / "tiny")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@cache
def checkpoint() -> Checkpoint:
    """Return it as the door sees it."""
    return Checkpoint.load(model())
