"""Flower reads the events of Celery's workers: they say what became of the work, and of which batch it is."""

import threading
from collections.abc import Iterator

import pytest
from celery import Celery
from celery.events import EventReceiver
from celery.events.state import State, Task

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.receiver import receiver


@pytest.fixture
def seen(running: Deployment) -> Iterator[State]:
    """Return the state of all tasks, as Flower builds it from events."""
    state, listening, stopping = State(), threading.Event(), threading.Event()
    app = Celery(broker=running.environment["REDIS_URL"], set_as_current=False)
    with app.connection() as connection:
        receiver = EventReceiver(connection, handlers={"*": state.event}, app=app)

        def follow() -> None:
            with receiver.consumer_context() as (own, _, _):
                listening.set()
                while not stopping.is_set():
                    try:
                        own.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

        thread = threading.Thread(target=follow)
        thread.start()
        assert listening.wait(60), "what is sent before is lost"
        yield state
        stopping.set()
        thread.join()


def task(seen: State, name: str, about: str) -> Task:
    """Return the task of this name about a batch, once its work is over."""

    def find() -> Task | None:
        for found in list(seen.tasks.values()):
            if found.name == name and about in (found.args or "") and found.runtime is not None:
                return found
        return None

    found: Task = eventually(find, what=f"the end of {name} for {about}")
    return found


def test_what_was_done_is_a_success_and_names_its_batch_and_shard(running: Deployment, seen: State) -> None:
    with receiver() as hook:
        batch_id = running.submit(prompts=["a", "b"], max_tokens=3, callback_url=hook.url)
        running.wait_for(batch_id)
        done = task(seen, "run_shard", batch_id)
        ((shard_id,),) = running.sql(f"SELECT id FROM shards WHERE batch_id = '{batch_id}'")
        assert done.args == f"(shard {shard_id} of {batch_id}, 2 requests)"
        assert (done.state, done.result) == ("SUCCESS", "2 completed, 0 failed")
        delivered = task(seen, "deliver_event", batch_id)
        assert (delivered.state, delivered.result) == ("SUCCESS", "HTTP 200, delivered")


def test_what_was_not_done_is_no_success(running: Deployment, seen: State) -> None:
    with receiver((500, {}), (500, {})) as broken, receiver((410, {})) as gone:
        long = {"max_tokens": 200, "ignore_eos": True, "max_total_tokens": 100}
        failed = running.submit(prompts=["a", "b"], callback_url=broken.url, **long)
        running.wait_for(failed, "failed")
        run = task(seen, "run_shard", failed)
        assert (run.state, run.exception) == ("FAILURE", "the batch failed: max_total_tokens_reached")
        attempt = task(seen, "deliver_event", failed)
        assert (attempt.state, attempt.exception) == ("RETRY", "HTTP 500, pending")
        refused = running.submit(prompts=["a"], max_tokens=1, callback_url=gone.url)
        attempt = task(seen, "deliver_event", refused)
        assert (attempt.state, attempt.exception) == ("FAILURE", "HTTP 410, failed")


def test_interactive_work_appears(running: Deployment, seen: State) -> None:
    answer = running.client.post("/v1/generate", json={"prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    (shown,) = running.sql("SELECT batch_id FROM shards WHERE lane = 'interactive' ORDER BY id DESC LIMIT 1")
    interactive = task(seen, "interactive", shown[0])
    assert (interactive.state, interactive.result) == ("SUCCESS", "1 completed, 0 failed")
    assert interactive.worker.hostname.startswith("gpu@")
