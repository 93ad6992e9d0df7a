"""Reads a file of batch lines into the requests that a tuner runs.

A line is an object with `prompt` or `messages`, or one in OpenAI's batch format. `expected`, beside its other
fields, is the reference answer (worker/quality/expected.py).
"""

import json
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from api.batches.schemas import BatchRequest
from api.batches.submission import to_request
from api.errors import ApiError
from api.files.lines import WrongLineError, read_line
from api.files.translator import Translator
from api.inputs.checkpoint import Checkpoint
from api.wrong_fields import explain, field_path
from worker.quality.expected import Expected
from worker.store.requests.requests import NewRequest
from worker.tuning.requests import TunedRequest
from worker.values.sampling import SamplingParams

DEFAULTS = SamplingParams()


class WorkloadError(Exception):
    """The file holds no workload. The message names the line."""


def read_workload(
    file: Path, checkpoint: Checkpoint, *, max_prompt_bytes: int
) -> tuple[list[TunedRequest], dict[int, Expected]]:
    """Return the requests, and the expectations by the number of the request, from 0 on.

    Raises:
        WorkloadError: a line is no generation with one prompt, or there are no lines.
        OSError: the file cannot be read.

    """
    translate = Translator(checkpoint, max_prompt_bytes)
    requests: list[TunedRequest] = []
    expected: dict[int, Expected] = {}
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        try:
            request = _to_new(text, checkpoint, translate)
            tuned = _to_tuned(request)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{field_path(first) or 'the line'}: {explain(first)}"
            raise WorkloadError(f"{file}, line {number}: {problem}") from error
        except (ApiError, WrongLineError) as error:
            raise WorkloadError(f"{file}, line {number}: {error.message}") from error
        except WorkloadError as error:
            raise WorkloadError(f"{file}, line {number}: {error}") from error
        if request.expected is not None:
            expected[len(requests)] = request.expected
        requests.append(tuned)
    if not requests:
        raise WorkloadError(f"{file} has no requests")
    return requests, expected


def _to_new(text: bytes, checkpoint: Checkpoint, translate: Translator) -> NewRequest:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise WorkloadError(f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise WorkloadError("must be a JSON object")
    if "url" in value:
        line = read_line(text)
        return replace(translate(line), expected=line.expected)
    return to_request(checkpoint, BatchRequest.model_validate(value), DEFAULTS, "line")


def _to_tuned(request: NewRequest) -> TunedRequest:
    params = DEFAULTS if request.params is None else request.params
    if not isinstance(params, SamplingParams) or request.tool_loop is not None:
        raise WorkloadError("a workload has generations only, without tool endpoints")
    if len(request.prompts) != 1:
        raise WorkloadError("a line of a workload has one prompt")
    most = request.max_tokens
    fitting = replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most), must_fit=False)
    return TunedRequest(request.prompts[0], fitting, request.add_special_tokens)
