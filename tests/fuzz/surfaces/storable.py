"""What Postgres must be able to keep, and a client to read."""

import json
from typing import Any

from fastapi.encoders import jsonable_encoder

from api import json_lines
from api.errors import ApiError, ErrorBody, error_response
from worker.store.requests.requests import NewRequest
from worker.values.requests import Params, kind_of, params_from_json


def check_request(request: NewRequest, params: Params) -> None:
    """Fail unless a request's columns fit Postgres's types, and its parameters come back as they were."""
    check_text(request.custom_id or "")
    for prompt in request.prompts:
        if isinstance(prompt, str):
            check_text(prompt)
        else:
            assert all(0 <= token_id < 2**31 for token_id in prompt)
    assert 0 < request.max_tokens < 2**31
    check_params(params)


def check_params(params: Params) -> None:
    """Fail unless parameters can be stored as JSON and read back."""
    stored = json.dumps(params.to_json(), allow_nan=False)
    assert "\\u0000" not in stored.replace("\\\\", ""), "NUL has no place in Postgres's JSON"
    check_text(json.dumps(params.to_json(), ensure_ascii=False))
    assert params_from_json(kind_of(params), json.loads(stored)) == params


def check_text(text: str) -> None:
    """Fail unless Postgres can keep a text."""
    assert "\x00" not in text
    text.encode()


CALL = {"type": "http", "path": "/v1/chat/completions", "headers": []}


def check_error(error: ApiError) -> None:
    """Fail unless an error can be told: as an answer, as a line of a file, as an event of a stream."""
    assert error.message
    answer = error_response(
        CALL, error.status, error.message, error.type, param=error.param, code=error.code, lines=error.lines
    )
    assert 400 <= answer.status_code < 500
    assert len(answer.body) < 100_000, "an error that repeats what was sent"
    check_answer(ErrorBody(error=error.detail).model_dump())


def check_answer(value: Any) -> None:
    """Fail unless a value can be written as a line of JSON in UTF-8."""
    line = json_lines.dumps(jsonable_encoder(value))
    assert len(line.splitlines()) == 1
    line.encode()
