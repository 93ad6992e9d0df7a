"""Generation by the unmodified OpenAI client, through every process."""

import json
import threading
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.fixtures.deployment import Deployment, eventually

HELLO = [{"role": "user", "content": "hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(running: Deployment) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{running.client.base_url}/v1", api_key="unused", timeout=90, max_retries=0
    ) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    return model.id


def test_a_chat_with_choices_logprobs_and_a_seed(client: OpenAI, model: str) -> None:
    def ask() -> openai.types.chat.ChatCompletion:
        return client.chat.completions.create(
            model=model,
            messages=HELLO,  # type: ignore[arg-type]
            max_completion_tokens=8,
            n=2,
            seed=5,
            logprobs=True,
            top_logprobs=2,
            extra_body={"ignore_eos": True},
        )

    first, again = ask(), ask()
    assert [choice.finish_reason for choice in first.choices] == ["length", "length"]
    assert [choice.message.content for choice in first.choices] == [
        choice.message.content for choice in again.choices
    ]
    assert first.choices[0].message.content != first.choices[1].message.content
    for choice in first.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 8
        for token in choice.logprobs.content:
            assert 2 <= len(token.top_logprobs) <= 3
            assert token.logprob in [likely.logprob for likely in token.top_logprobs]
        spelled = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
        assert spelled.decode(errors="replace").replace("\0", "\ufffd") == choice.message.content
    assert first.usage is not None
    assert first.usage.completion_tokens == 16
    assert first.usage.prompt_tokens > 0


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, model: str, n: int) -> None:
    options = {
        "model": model,
        "messages": HELLO,
        "max_tokens": 30,
        "seed": 11,
        "n": n,
        "logprobs": True,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**options)  # type: ignore[call-overload]
    texts = [""] * n
    num_tokens = [0] * n
    reasons: dict[int, str] = {}
    num_chunks = 0
    usage = None
    stream = client.chat.completions.create(  # type: ignore[call-overload]
        **options, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        num_chunks += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if not texts[choice.index]:
                assert choice.delta.role == "assistant"
            texts[choice.index] += choice.delta.content
            if choice.logprobs is not None:
                num_tokens[choice.index] += len(choice.logprobs.content)
            if choice.finish_reason is not None:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert num_tokens == [30] * n
    assert reasons == dict.fromkeys(range(n), "length")
    assert num_chunks > 5
    assert usage is not None
    assert usage.completion_tokens == 30 * n


def test_a_stop_string_and_a_schema(client: OpenAI, model: str) -> None:
    options = {"model": model, "messages": HELLO, "max_tokens": 40, "seed": 2}
    whole = client.chat.completions.create(**options, extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    text = whole.choices[0].message.content
    stop = text[10:13]
    cut = client.chat.completions.create(**options, stop=[stop], extra_body={"ignore_eos": True})  # type: ignore[call-overload]
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    valid = client.chat.completions.create(
        model=model,
        messages=HELLO,  # type: ignore[arg-type]
        seed=3,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
    )
    person = json.loads(valid.choices[0].message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_completions_of_several_prompts(client: OpenAI, model: str) -> None:
    options = {"model": model, "prompt": ["one", "two"], "max_tokens": 6, "n": 2, "seed": 4, "logprobs": 1}
    options |= {"extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**options)  # type: ignore[call-overload]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [len(choice.logprobs.tokens) for choice in whole.choices] == [6] * 4
    assert whole.usage.completion_tokens == 24
    texts = [""] * 4
    for chunk in client.completions.create(**options, stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_embeddings(client: OpenAI, model: str) -> None:
    texts = ["a text", "another text", "a text"]
    found = client.embeddings.create(model=model, input=texts)  # base64, as the client asks by itself
    first, other, again = (one.embedding for one in found.data)
    assert first == again != other
    assert abs(sum(value * value for value in first) - 1) < 1e-3
    plain = client.embeddings.create(model=model, input=texts[0], encoding_format="float", dimensions=4)
    assert len(plain.data[0].embedding) == 4
    assert found.usage.prompt_tokens > plain.usage.prompt_tokens > 0


def test_errors_are_those_that_the_client_knows(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=model, messages=HELLO, tools=[{"type": "function"}])  # type: ignore[list-item,call-overload]
    assert raised.value.param == "tools[0].function"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)  # type: ignore[arg-type]
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="x " * 5000, stream=True)
    assert long.value.code == "context_length_exceeded"


def test_who_goes_away_is_not_worked_for(running: Deployment, client: OpenAI, model: str) -> None:
    longest = client.models.retrieve(model).max_model_len - len("x")  # type: ignore[attr-defined]
    stream = client.completions.create(
        model=model, prompt="x", max_tokens=longest, n=64, stream=True, extra_body={"ignore_eos": True}
    )
    batch_id = "batch_" + next(iter(stream)).id.removeprefix("cmpl-").rpartition("-")[0]
    stream.close()
    query = f"SELECT status FROM batches WHERE id = '{batch_id}' AND finished_at IS NOT NULL"
    assert eventually(lambda: running.sql(query), what="its end") == [("cancelled",)]


def test_interactive_work_passes_a_backlog(running: Deployment, client: OpenAI, model: str) -> None:
    backlog = running.submit(prompts=["long"] * 2000, max_tokens=150, ignore_eos=True)
    running.wait_for_progress(backlog, 0.01)
    client.completions.create(model=model, prompt="now", max_tokens=3)
    assert running.batch(backlog)["status"] == "processing"
    running.client.post(f"/v1/batch/{backlog}/cancel")
    running.wait_for(backlog, "cancelled")


def test_requests_out_of_time_fail_and_their_batch_completes(running: Deployment) -> None:
    options = {"max_tokens": 150, "ignore_eos": True, "timeout_seconds": 1}
    batch_id = running.submit(prompts=["long"] * 2000, **options)
    batch = running.wait_for(batch_id, "completed")
    assert batch["counts"]["failed"] > 0
    assert batch["counts"]["completed"] + batch["counts"]["failed"] == 2000
    query = f"SELECT DISTINCT error_code FROM results WHERE batch_id = '{batch_id}' AND outcome = 'failed'"
    assert running.sql(query) == [("timeout",)]
    late = running.client.post("/v1/generate", json={"prompt": "now", "timeout_seconds": 1e-6})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    items = {"prompts": ["now"], "timeout_seconds": 1e-6}
    (item,) = running.client.post("/v1/generate/batch", json=items).json()["results"]
    assert (item["error"]["code"], item["finish_reason"]) == ("timeout", "error")


def test_the_plain_routes(running: Deployment) -> None:
    post = running.client.post
    body = {"prompt": "one two three four five", "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    answers = {
        level: post("/v1/generate", json=body | {"optimization": level}).json()
        for level in ("none", "basic", "full")
    }
    assert len({answer["text"] for answer in answers.values()}) == 1
    assert {level: answer["optimization_used"] for level, answer in answers.items()} == {
        level: level for level in answers
    }
    assert all(answer["tokens_generated"] == 9 for answer in answers.values())
    assert [answers[level]["used"]["batched"] for level in ("none", "basic", "full")] == [False, True, True]
    assert not any(answer["used"]["response_cache"] for answer in answers.values())
    again = post("/v1/generate", json=body | {"optimization": "full"}).json()
    assert again["used"] == {
        "batched": False,
        "prefix_cache": False,
        "response_cache": True,
        "deduplicated": False,
        "speculation": False,
        "quantization": None,
    }
    assert (again["text"], again["tokens_generated"]) == (answers["full"]["text"], 9)
    assert not post("/v1/generate", json=body | {"optimization": "basic"}).json()["used"]["response_cache"]
    assert answers["none"]["cached_tokens"] == answers["basic"]["cached_tokens"] == 0
    with running.client.stream("POST", "/v1/generate", json=body | {"stream": True}) as stream:
        events = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert events[-1] == "[DONE]"
    *pieces, whole = (json.loads(one) for one in events[:-1])
    assert "".join(piece["text"] for piece in pieces) == whole["text"] == answers["full"]["text"]
    prompts = {"prompts": ["a", "b", body.pop("prompt"), "a"]}
    several = post("/v1/generate/batch", json=prompts | body).json()["results"]
    assert [one["tokens_generated"] for one in several] == [9] * 4
    assert [one["optimization_used"] for one in several] == ["full"] * 4
    assert [one["used"]["batched"] for one in several] == [True, True, False, False]
    assert [one["used"]["response_cache"] for one in several] == [False, False, True, False]
    assert [one["used"]["deduplicated"] for one in several] == [False, False, False, True]
    ran, known = several[0], several[2]
    assert ran["created_at"] < ran["started_at"] < ran["completed_at"]
    assert 0 < ran["queue_ms"] < ran["latency_ms"]
    assert (known["started_at"], known["queue_ms"], known["error"]) == (None, None, None)
    page = running.client.get(f"/v1/batch/{answers['full']['batch_id']}/results").json()
    times = ("created_at", "started_at", "completed_at", "queue_ms", "latency_ms")
    assert [page["data"][0][name] for name in times] == [answers["full"][name] for name in times]
    sync = post("/v1/batch/sync", json={"prompts": ["a", "b"], "max_tokens": 4, "n": 2}).json()
    assert [len(output) for output in sync["outputs"]] == [2, 2]
    later = post("/v1/batch/sync", json={"prompts": ["a"], "max_tokens": 100, "wait_seconds": 0})
    assert later.status_code == 202
    running.wait_for(later.json()["batch_id"])
    info = running.client.get("/v1/model/info").json()
    assert info["workers"] == 1
    assert info["batch_size"] >= 1
    assert (info["quantization"], info["details"]["checkpoint_format"]) == ("f32", "float32")


def test_many_at_once(client: OpenAI, model: str) -> None:
    texts: list[str] = []

    def ask() -> None:
        texts.append(client.completions.create(model=model, prompt="x", max_tokens=5, seed=1).choices[0].text)

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 24
    assert len(set(texts)) == 1
