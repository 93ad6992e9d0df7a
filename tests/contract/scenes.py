"""What a customer's program does: `python -m tests.contract.scenes VERSION URL SECRET SCENE MODEL`."""

import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
from openai import OpenAI

from tests.contract import response_scenes
from tests.fixtures.receiver import receiver

MODEL = ""
SECRET = ""


def lines(count: int, url: str = "/v1/chat/completions", **body: Any) -> bytes:
    """Return a batch's input; two lines in three have a message of their own."""
    content = [{"role": "user", "content": f"jump over the lazy dog {i}"} for i in range(count)]
    given = [{"messages": [content[i]]} if "chat" in url else {"prompt": "jump"} for i in range(count)]
    return b"".join(
        json.dumps(
            {
                "custom_id": f"row-{i}",
                "method": "POST",
                "url": url,
                "body": {"model": MODEL, "max_tokens": 6} | given[i] | body,
            }
        ).encode()
        + b"\n"
        for i in range(count)
    )


def refused(kind: type[openai.APIStatusError], call: Callable[[], object]) -> Any:
    """Return the error that a call must end with."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def wait(client: OpenAI, batch_id: str, *statuses: str) -> Any:
    """Poll until a batch has ended."""
    deadline = time.monotonic() + 240
    seen = []
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        seen.append(batch.status)
        counts = batch.request_counts
        extra = counts.model_extra
        assert counts.total == counts.completed + counts.failed + extra["cancelled"] + extra["pending"]
        if batch.status in statuses:
            return batch
        assert batch.status in {"validating", "in_progress", "finalizing", "cancelling"}, batch
        time.sleep(0.05)
    raise AssertionError(f"{batch_id} came to {seen[-1]}")


def batch(client: OpenAI) -> None:
    """Upload, create, wait for the signed webhook, download, list, delete."""
    file = client.files.create(
        file=("in.jsonl", lines(70)),
        purpose="batch",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    assert (file.object, file.status, file.purpose, file.filename) == (
        "file",
        "processed",
        "batch",
        "in.jsonl",
    )
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id).bytes == len(lines(70))
    assert client.files.content(file.id).read() == lines(70)
    with receiver() as hook:
        made = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"set": "one"},
            extra_body={"callback_url": hook.url},
        )
        assert made.object == "batch"
        assert made.status == "validating"
        headers, body = hook.wait_for(1, seconds=90)[0]
    event = client.webhooks.unwrap(body, headers)
    assert (event.type, event.data.id) == ("batch.completed", made.id)
    ended = client.batches.retrieve(made.id)
    assert ended.status == "completed"  # the files are there when the webhook comes
    assert ended.metadata == {"set": "one"}
    assert (ended.request_counts.total, ended.request_counts.completed) == (70, 70)
    assert ended.error_file_id is None
    assert ended.created_at <= ended.in_progress_at <= ended.finalizing_at <= ended.completed_at
    assert ended.expires_at == ended.created_at + 86400
    results = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert sorted(result["custom_id"] for result in results) == sorted(f"row-{i}" for i in range(70))
    for result in results:
        response = result["response"]
        assert (response["status_code"], result["error"]) == (200, None)
        choice = response["body"]["choices"][0]
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] in {"stop", "length"}
    used = sum(result["response"]["body"]["usage"]["completion_tokens"] for result in results)
    assert ended.to_dict()["usage"]["output_tokens"] == used > 0  # 1.x has no type for it
    assert made.id in [one.id for one in client.batches.list(limit=1)]  # page by page
    names = {one.filename for one in client.files.list(purpose="batch_output")}
    assert f"{made.id}_output.jsonl" in names
    assert client.files.delete(file.id).deleted
    assert refused(openai.NotFoundError, lambda: client.files.retrieve(file.id)).param == "file_id"


def failures(client: OpenAI) -> None:
    """A prompt that does not fit fails alone; a file for another endpoint fails the batch, by line."""
    long = lines(3, "/v1/completions").splitlines(keepends=True)
    wrong = json.loads(long[1])
    wrong["body"]["prompt"] = "jump over " * 200
    long[1] = json.dumps(wrong).encode() + b"\n"
    file = client.files.create(file=("in.jsonl", b"".join(long)), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="1h")
    ended = wait(client, made.id, "completed")
    assert (ended.request_counts.completed, ended.request_counts.failed) == (2, 1)
    line = json.loads(client.files.content(ended.error_file_id).text)
    assert (line["custom_id"], line["response"]["status_code"]) == ("row-1", 400)
    assert "tokens" in line["response"]["body"]["error"]["message"]
    other = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="1h"
    )
    failed = wait(client, other.id, "failed")
    assert [(one.line, one.code) for one in failed.errors.data] == [
        (line, "mismatched_endpoint") for line in (1, 2, 3)
    ]
    assert failed.failed_at is not None
    bad = ("in.jsonl", lines(3) + lines(2) + b"{}\n")
    error = refused(openai.BadRequestError, lambda: client.files.create(file=bad, purpose="batch"))
    found = [(one["line"], one["code"]) for one in error.body["lines"]]
    assert found == [(4, "duplicate_custom_id"), (5, "duplicate_custom_id"), (6, "missing_field")]


def uploads(client: OpenAI) -> None:
    """Parts in any order, completed in theirs; and one given up."""
    whole = lines(2000)
    upload = client.uploads.create(
        purpose="batch", filename="parts.jsonl", bytes=len(whole), mime_type="application/jsonl"
    )
    middle = len(whole) // 2 + 7  # within a line
    last = client.uploads.parts.create(upload.id, data=whole[middle:])
    first = client.uploads.parts.create(upload.id, data=whole[:middle])
    done = client.uploads.complete(upload.id, part_ids=[first.id, last.id])
    assert done.status == "completed"
    assert client.files.content(done.file.id).read() == whole
    by_chunks = client.uploads.upload_file_chunked(
        file=whole, filename="c.jsonl", bytes=len(whole), mime_type="application/jsonl", purpose="batch",
        part_size=100_000,
    )  # fmt: skip
    assert client.files.content(by_chunks.file.id).read() == whole
    given_up = client.uploads.create(purpose="batch", filename="x", bytes=5, mime_type="text/plain")
    assert client.uploads.cancel(given_up.id).status == "cancelled"
    refused(openai.ConflictError, lambda: client.uploads.parts.create(given_up.id, data=b"12345"))


def cancel(client: OpenAI) -> None:
    """What is done is kept in the output file, the rest is named in the error file."""
    long = lines(2000, "/v1/completions", max_tokens=100, extra={}).replace(b', "extra": {}', b"")
    long = long.replace(b'"max_tokens": 100', b'"max_tokens": 100, "ignore_eos": true')
    file = client.files.create(file=io.BytesIO(long), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    while client.batches.retrieve(made.id).request_counts.completed == 0:
        time.sleep(0.02)
    assert client.batches.cancel(made.id).status in {"cancelling", "cancelled"}
    ended = wait(client, made.id, "cancelled")
    kept = client.files.content(ended.output_file_id).text.splitlines()
    dropped = [json.loads(line) for line in client.files.content(ended.error_file_id).text.splitlines()]
    assert len(kept) == ended.request_counts.completed > 0
    assert len(kept) + len(dropped) == 2000
    assert {(one["response"], one["error"]["code"]) for one in dropped} == {(None, "batch_cancelled")}
    assert ended.cancelling_at <= ended.cancelled_at


def retries(client: OpenAI) -> None:
    """The server made the batch and the answer was lost: the client's own retry finds it."""
    file = client.files.create(file=("in.jsonl", lines(2)), purpose="batch")
    lost = []

    class Lossy(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if len(lost) < 2:
                response.read()
                lost.append(json.loads(response.content)["id"])
                raise httpx.ReadError("the answer is lost")
            return response

    unlucky = OpenAI(base_url=client.base_url, api_key="none", http_client=httpx.Client(transport=Lossy()))
    request = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = unlucky.batches.create(**request, metadata={"try": "me"})
    assert lost == [made.id, made.id]
    assert client.batches.create(**request, metadata={"try": "me"}).id != made.id  # asked for anew
    assert client.batches.create(**request, metadata={"try": "you"}).id != made.id
    keyed = [
        client.batches.create(**request, extra_headers={"Idempotency-Key": f"key-{file.id}"}).id for _ in "ab"
    ]
    assert len(set(keyed)) == 1


def experiment(client: OpenAI) -> None:
    """A batch from a file says which model is to run its lines too, and where the comparison is read."""
    file = client.files.create(file=("in.jsonl", lines(20, temperature=0)), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    wanted = {"model": "nobodys", "share": 0.5}
    error = refused(
        openai.BadRequestError,
        lambda: client.batches.create(**asked, extra_body={"experiment": wanted}),  # type: ignore[arg-type]
    )
    assert (error.param, error.code) == ("experiment.model", "invalid_value")
    made = client.batches.create(**asked, extra_body={"experiment": wanted | {"model": MODEL}})  # type: ignore[arg-type]
    experiment_id = made.to_dict()["experiment_id"]
    ended = wait(client, made.id, "completed")
    assert ended.to_dict()["experiment_id"] == experiment_id
    assert ended.request_counts.total == 20
    deadline = time.monotonic() + 90
    while True:
        report = client.get(f"/experiments/{experiment_id}", cast_to=object)
        assert isinstance(report, dict)
        if report["status"] == "ended":
            break
        assert time.monotonic() < deadline, report
        time.sleep(0.05)
    assert (report["requests"], report["compared"], report["agreement"]) == (10, 10, 1)


def tools(client: OpenAI) -> None:
    """What must be called is called with valid JSON: whole, streamed, and by the lines of a file."""
    schema = {"type": "object", "properties": {"wall": {"type": "boolean"}}, "required": ["wall"]}
    offered = [{"type": "function", "function": {"name": "paint", "parameters": schema}}]
    asked = {"tools": offered, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 90}

    def said(message: Any) -> tuple[str, dict[str, Any]]:
        (call,) = message["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert list(arguments) == ["wall"]
        assert isinstance(arguments["wall"], bool)
        return call["function"]["name"], arguments

    turns = [{"role": "user", "content": "jump over the lazy dog 0"}]
    whole = client.chat.completions.create(model=MODEL, messages=turns, seed=1, **asked)  # type: ignore[call-overload]
    assert whole.choices[0].finish_reason == "tool_calls"
    answer = said(whole.choices[0].message.model_dump())
    name = arguments = ""
    options = {"model": MODEL, "messages": turns, "seed": 1, "stream": True}
    for chunk in client.chat.completions.create(**options, **asked):  # type: ignore[call-overload]
        for part in chunk.choices[0].delta.tool_calls or ():
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    assert (name, json.loads(arguments)) == answer
    past = [*turns, whole.choices[0].message, {"role": "tool", "tool_call_id": "x", "content": "ok"}]
    client.chat.completions.create(model=MODEL, messages=past, max_tokens=2)
    file = client.files.create(file=("in.jsonl", lines(3, seed=1, **asked)), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    done = wait(client, made.id, "completed")
    results = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    answers = {}
    for result in results:
        (choice,) = result["response"]["body"]["choices"]
        assert choice["finish_reason"] == "tool_calls"
        answers[result["custom_id"]] = said(choice["message"])
    assert len(answers) == 3
    assert answers["row-0"] == answer


SCENES: dict[str, Callable[[OpenAI], None]] = {
    scene.__name__: scene
    for scene in (batch, failures, uploads, cancel, retries, experiment, tools, *response_scenes.SCENES)
}

if __name__ == "__main__":
    version, url, SECRET, name, MODEL = sys.argv[1:]
    assert openai.__version__ == version, openai.__version__
    SCENES[name](OpenAI(base_url=f"{url}/v1", api_key="none", webhook_secret=SECRET, max_retries=2))
