"""Reads a file of prompts into fields of a submission: one request per line, as JSON or text."""

import json
from collections.abc import Iterable
from typing import Any


class PromptFileError(Exception):
    """The file does not hold a batch. The message names the line."""


def read_prompts(name: str, lines: Iterable[str]) -> dict[str, Any]:
    """Return `requests` of a file whose name ends in .jsonl, else `prompts`; skip empty lines.

    A line of JSON is a string, or an object with `prompt` or `messages` and any other field of a request.

    Raises:
        PromptFileError: a line is no JSON object or string, or there are no lines.

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
