"""From a file of prompts to what the API takes: a line a request, of JSON or of text."""

import json
from collections.abc import Iterable
from typing import Any


class PromptFileError(Exception):
    """A file that holds no batch. The message names the line."""


def read_prompts(name: str, lines: Iterable[str]) -> dict[str, Any]:
    """Return `requests` of a file whose name ends in .jsonl, else `prompts`; empty lines are left out.

    A line of JSON is an object with `prompt` or `messages` and whatever else a request may have, or a string.

    Raises:
        PromptFileError: a line is not JSON, or there is none.

    """
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise PromptFileError(f"{name} has no prompts")
    if not name.endswith(".jsonl"):
        return {"prompts": [line for _, line in numbered]}
    return {"requests": [_to_request(name, number, line) for number, line in numbered]}


def _to_request(name: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise PromptFileError(f"{name}, line {number}: not JSON: {error}") from error
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise PromptFileError(f"{name}, line {number}: neither an object nor a string")
    return value
