"""Reads a file of batch lines, or a tenant's stored requests, into the requests that a tuner runs.

A line is an object with `prompt` or `messages`, or one in OpenAI's batch format. `expected`, beside its other
fields, is the reference answer (worker/quality/expected.py).
"""

import json
from collections.abc import Iterable
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
from worker.store.batches import samples
from worker.store.batches.samples import ReuseNotAllowedError
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.tuning.requests import TunedRequest
from worker.values.sampling import SamplingParams

DEFAULTS = SamplingParams()
Workload = tuple[list[TunedRequest], dict[int, Expected]]  # expectations by number of the request, from 0 on


class WorkloadError(Exception):
    """There is no workload. The message names the line of the file that is wrong, if one is."""


def sample_workload(url: str, tenant: str, checkpoint: Checkpoint, *, most: int) -> Workload:
    """Return at most `most` of the requests that a tenant has stored for a model with this tokenizer.

    Raises:
        WorkloadError: the tenant has not allowed it, or has no such requests.

    """
    store = Store(url, pool_size=1)
    try:
        with store.of_tenant(tenant).transaction() as session:
            found = samples.draw(session, tokenizer=checkpoint.model.tokenizer, most=most)
    except ReuseNotAllowedError:
        raise WorkloadError(
            f"Tenant {tenant} has not allowed that its stored requests are used for tuning. If it does:"
            f" headrace tenants set {tenant} --reuse"
        ) from None
    finally:
        store.close()
    if not found:
        raise WorkloadError(f"Tenant {tenant} has stored no generations for {checkpoint.name}'s tokenizer.")
    return [to_tuned(request) for request in found], _expected(found)


def read_workload(file: Path, checkpoint: Checkpoint, *, max_prompt_bytes: int) -> Workload:
    """Return the requests and expectations of a file.

    Raises:
        WorkloadError: a line is no generation with one prompt, or there are no lines.
        OSError: the file cannot be read.

    """
    translate = Translator(checkpoint, max_prompt_bytes)
    requests: list[NewRequest] = []
    tuned: list[TunedRequest] = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        if not text.strip():
            continue
        try:
            request = _to_new(text, checkpoint, translate)
            tuned.append(to_tuned(request))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{field_path(first) or 'the line'}: {explain(first)}"
            raise WorkloadError(f"{file}, line {number}: {problem}") from error
        except (ApiError, WrongLineError) as error:
            raise WorkloadError(f"{file}, line {number}: {error.message}") from error
        except WorkloadError as error:
            raise WorkloadError(f"{file}, line {number}: {error}") from error
        requests.append(request)
    if not requests:
        raise WorkloadError(f"{file} has no requests")
    return tuned, _expected(requests)


def _expected(requests: Iterable[NewRequest]) -> dict[int, Expected]:
    return {number: one.expected for number, one in enumerate(requests) if one.expected is not None}


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


def to_tuned(request: NewRequest) -> TunedRequest:
    """Return a request as a trial runs it; raises WorkloadError if it cannot run it."""
    params = DEFAULTS if request.params is None else request.params
    if not isinstance(params, SamplingParams) or request.tool_loop is not None:
        raise WorkloadError("a workload has generations only, without tool endpoints")
    if len(request.prompts) != 1:
        raise WorkloadError("a line of a workload has one prompt")
    most = request.max_tokens
    fitting = replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most), must_fit=False)
    return TunedRequest(request.prompts[0], fitting, request.add_special_tokens)
