"""The life of a batch, over HTTP, with nothing replaced."""

import json
import socket
import time
from typing import Any

from standardwebhooks import Webhook

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.receiver import receiver

PROMPTS = [f"the quick brown fox {i} " + "jumps over " * (i % 9) for i in range(80)]
BACKLOG = {"prompts": PROMPTS * 60, "max_tokens": 100, "ignore_eos": True}  # lasts longer than a test looks


def cancel(running: Deployment, batch_id: str) -> dict[str, Any]:
    running.client.post(f"/v1/batch/{batch_id}/cancel")
    return running.wait_for(batch_id, "cancelled")


def test_a_batch_goes_in_and_a_signed_webhook_comes_out(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = running.submit(prompts=PROMPTS, max_tokens=12, callback_url=hook.url, metadata={"k": "v"})
        headers, body = hook.wait_for(1)[0]
    event = Webhook(running.environment["HEADRACE_WEBHOOK_SECRET"]).verify(body, headers)
    assert (event["type"], event["batch_id"]) == ("batch.completed", batch_id)
    assert event["data"]["metadata"] == {"k": "v"}
    batch = running.wait_for(batch_id)
    assert batch["counts"] == {"total": 80, "pending": 0, "completed": 80, "failed": 0, "cancelled": 0}
    assert batch["outputs"] == event["data"]["outputs"]
    assert batch["usage"]["output_tokens"] == sum(
        result["usage"]["output_tokens"] for result in running.results(batch_id)
    )
    eventually(lambda: running.batch(batch_id)["callback"]["state"] == "delivered")
    assert json.loads(body) == event


def test_greedy_output_does_not_depend_on_the_company(running: Deployment) -> None:
    together = running.submit(prompts=PROMPTS, max_tokens=10, temperature=0)
    alone = running.submit(prompts=[PROMPTS[7]], max_tokens=10, temperature=0)
    assert running.wait_for(together)["outputs"][7] == running.wait_for(alone)["outputs"][0]


def test_the_same_seed_gives_the_same_text(running: Deployment) -> None:
    ids = [running.submit(prompts=PROMPTS[:8], max_tokens=16, temperature=1.0, seed=11) for _ in range(2)]
    first, second = (running.wait_for(batch_id)["outputs"] for batch_id in ids)
    assert first == second
    assert len(set(first)) > 1


def test_cancel_stops_a_running_batch_and_keeps_what_is_done(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = running.submit(**BACKLOG, callback_url=hook.url)
        running.wait_for_progress(batch_id, 0.02)
        batch = cancel(running, batch_id)
        event = json.loads(hook.wait_for(1)[0][1])
    counts = batch["counts"]
    assert counts["completed"] + counts["cancelled"] == counts["total"] == 4800
    assert counts["cancelled"] > 0
    assert event["type"] == "batch.cancelled"
    results = running.results(batch_id)
    assert sorted(result["index"] for result in results) == list(range(4800))


def test_a_window_that_closes_expires_the_batch(running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG, completion_window="24h")
    running.wait_for_progress(batch_id, 0.02)
    # A window that cannot be kept is refused at once, so the hours pass only when it runs.
    running.sql(f"UPDATE batches SET expires_at = now() WHERE id = '{batch_id}' RETURNING id")
    counts = running.wait_for(batch_id, "expired")["counts"]
    assert counts["completed"] + counts["cancelled"] == counts["total"]
    assert counts["cancelled"] > 0


def test_progress_reaches_the_client_while_requests_run(running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG)
    seen = [0.0]

    def has_moved_four_times() -> bool:
        progress = running.batch(batch_id)["progress"]
        if progress != seen[-1]:
            seen.append(progress)
        return len(seen) > 4

    eventually(has_moved_four_times)
    assert seen == sorted(seen)
    assert seen[-1] < 1
    cancel(running, batch_id)


def test_several_shards_feed_the_engine_at_once(running: Deployment) -> None:
    batch_id = running.submit(**BACKLOG)
    query = f"SELECT count(*) FROM shards WHERE batch_id = '{batch_id}' AND state = 'running'"
    eventually(lambda: running.sql(query)[0][0] >= 4)
    cancel(running, batch_id)


def test_a_client_that_asks_every_few_seconds_keeps_its_connection(running: Deployment) -> None:
    """httpx gives a connection up after 5 idle seconds: a server that closes it then breaks requests."""
    url = running.client.base_url
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        for pause in (0, 7):
            time.sleep(pause)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                received = connection.recv(4096)
                assert received, f"closed after {pause} idle seconds"
                answer += received
            assert b"200 OK" in answer
