"""What a large body takes in memory while it is read, checked and stored, and what of that stays."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.api_process import ApiProcess, api_process
from tests.fixtures.checkpoint import write_checkpoint
from tests.fixtures.deployment import eventually
from worker.store.database.session import Store

NUM_PROMPTS, PROMPT_BYTES = 20_000, 1000
MOST, MOST_STAYS = 5, 1.5
WORDS = [
    "the",
    "file",
    "json",
    "module",
    "returns",
    "a",
    "list",
    "of",
    "lines",
    "from",
    "each",
    "path",
    "and",
    "class",
    "which",
    "reads",
    "it",
]


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Iterator[ApiProcess]:  # noqa: ARG001 - empties the tables
    model = write_checkpoint(tmp_path)  # a token a byte: no tokenizer makes more of them
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    with api_process(tmp_path, model) as running:
        yield running


def body_of(form: str, num_prompts: int) -> bytes:
    chance = random.Random(1)
    prompts = [
        f"{i} {' '.join(chance.choices(WORDS, k=PROMPT_BYTES // 4))}"[:PROMPT_BYTES]
        for i in range(num_prompts)
    ]
    requests = [{"custom_id": f"row-{i}", "prompt": prompt} for i, prompt in enumerate(prompts)]
    return json.dumps({form: prompts if form == "prompts" else requests, "max_tokens": 1}).encode()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["prompts", "requests"])
def test_a_large_body_takes_a_few_times_its_size_and_little_of_that_stays(api: ApiProcess, form: str) -> None:
    def post(body: bytes) -> None:
        answer = httpx.post(
            f"{api.url}/v1/batch/async",
            content=body,
            headers={"content-type": "application/json", "idempotency-key": str(len(body))},
            timeout=300,
        )
        assert answer.status_code == 202, answer.text

    post(body_of(form, 10))  # what is loaded late is there
    before = api.memory_bytes("VmRSS")
    body = body_of(form, NUM_PROMPTS)

    def times(name: str) -> float:
        return (api.memory_bytes(name) - before) / len(body)

    post(body)
    print(f"{len(body) / 1e6:.0f} MB of {form}: at most {times('VmHWM'):.1f} times that")  # noqa: T201
    assert times("VmHWM") < MOST
    eventually(lambda: times("VmRSS") < MOST_STAYS, seconds=30, what=f"{MOST_STAYS} of {times('VmRSS'):.1f}")
    print(f"{times('VmRSS'):.1f} times stay")  # noqa: T201
