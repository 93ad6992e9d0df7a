"""Tool loops under SIGKILL of their worker: every line one result, no recorded call made again."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.deployment import Deployment, deployment, eventually
from tests.fixtures.tiny_llama import write_tiny_llama
from tests.fixtures.tool_endpoint import Endpoint, Told, tool_endpoint

pytestmark = pytest.mark.slow
NUM_LINES, NUM_KILLS = 200, 5
ADD: dict[str, Any] = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]},
}
RECORDED = "SELECT request_id, number, said FROM tool_turns"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Deployment]:
    model = write_tiny_llama(tmp_path / "model", max_position_embeddings=512)
    knows = "{% for tool in tools or [] %}<tool_call>{{ tool.function.name }}{% endfor %}"
    (model / "chat_template.jinja").write_text(knows + TEMPLATE)
    options = {
        "HEADRACE_SHARD_SIZE": "20",
        "HEADRACE_LEASE_SECONDS": "2",
        "HEADRACE_MAX_ATTEMPTS": "50",
    }
    with deployment(tmp_path, model, **options) as started:
        yield started


class Recorded:
    """What the rows and the endpoint say at each death: which calls had their answer."""

    def __init__(self, running: Deployment, endpoint: Endpoint) -> None:
        self.running = running
        self.endpoint = endpoint
        self.times: dict[str, int] = {}  # of calls that had an answer in a row, by key: how often they came

    def note(self, batch_id: str) -> None:
        """Note the calls whose answer is recorded, once the worker is dead."""
        came = self.endpoint.times
        positions = dict(self.running.sql(f"SELECT id, position FROM requests WHERE batch_id = '{batch_id}'"))
        rows = self.running.sql(RECORDED)
        for request_id, number, said in rows:
            for index, call in enumerate(said["calls"]):
                if "answer" in call:
                    key = f"{batch_id}-{positions[request_id]}-{number}-{index}"
                    self.times.setdefault(key, came[key])
        done = self.running.sql("SELECT request_id, payload -> 'tool_turns' FROM results")
        for request_id, turns in done:
            for turn in turns or []:
                for index in range(len(turn["calls"])):
                    key = f"{batch_id}-{positions[request_id]}-{turn['number']}-{index}"
                    self.times.setdefault(key, came[key])


def line(index: int, url: str) -> dict[str, Any]:
    turns = 2 + index % 4  # outputs of the model: 2 to 5
    return {
        "custom_id": f"row-{index}",
        "messages": [{"role": "user", "content": f"go up and down, and tell me what you see there: {index}"}],
        "tools": [{"type": "function", "function": ADD}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "tool_endpoint": {"url": url, "forced_turns": turns - 1, "max_turns": turns},
        "max_tokens": 300,
        "seed": index,
    }


def test_a_batch_of_conversations_survives_kills(running: Deployment) -> None:
    def answer(body: dict[str, Any]) -> Told:
        return 200, json.dumps({"was": body["arguments"]["up"], "turn": body["turn"]})

    with tool_endpoint(answer) as endpoint:
        batch_id = running.submit(requests=[line(i, endpoint.url) for i in range(NUM_LINES)])
        recorded = Recorded(running, endpoint)
        for kill in range(NUM_KILLS):
            least = kill * NUM_LINES // 4
            eventually(lambda least=least: len(endpoint.calls) > least, what="calls")
            eventually(lambda: running.sql(RECORDED), what="a recorded turn")
            running.kill_in_a_shard()
            recorded.note(batch_id)
            running.start("gpu")
        batch = running.wait_for(batch_id, seconds=400)
        came = endpoint.times
    results = running.results(batch_id)
    assert batch["counts"]["completed"] == NUM_LINES, Counter(str(one["error"]) for one in results)
    assert sorted(one["index"] for one in results) == list(range(NUM_LINES))
    again = {key: (count, came[key]) for key, count in recorded.times.items() if came[key] != count}
    assert again == {}, "calls whose answer was recorded were made again"
    cached, num_turns = 0, Counter[int]()
    for one in results:
        turns = one["tool_turns"]
        assert [turn["turn"] for turn in turns] == list(range(1, 2 + one["index"] % 4))
        assert all(call["answer"] for turn in turns for call in turn["calls"])
        assert one["usage"]["cached_tokens"] > 0, "no turn found the KV cache of the one before"
        assert one["usage"]["output_tokens"] > sum(turn["output_tokens"] for turn in turns)
        num_turns[len(turns) + 1] += 1
        cached += one["usage"]["cached_tokens"]
    figures = {
        "lines": len(results),
        "turns": dict(sorted(num_turns.items())),
        "kills": NUM_KILLS,
        "calls": len(came),
        "posts": sum(came.values()),
        "recorded_at_deaths": len(recorded.times),
        "cached_share": round(cached / batch["usage"]["input_tokens"], 3),
    }
    print(json.dumps(figures))  # noqa: T201 - the figures of the run
