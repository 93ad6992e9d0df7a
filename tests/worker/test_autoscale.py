"""Real processes of this machine follow what is published."""

import io
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.fixtures.batches import held, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from worker.autoscale import LocalWorkers
from worker.contract.messages import GPU_QUEUE
from worker.settings import EXIT_CONFIGURATION
from worker.store.database.session import Store
from worker.store.watching import scaling, workers
from worker.store.watching.scaling import WantedWorkers

MODEL = "ab12" * 8


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def local(store: Store, output: io.StringIO) -> Iterator[LocalWorkers]:
    command = "sh -c 'echo pid $$; exec sleep 600'"
    local = LocalWorkers(store, MODEL, command, threading.Event(), output)
    yield local
    local.stop()


def want(store: Store, count: int) -> None:
    decision = WantedWorkers(
        model_fingerprint=MODEL,
        model_name="tiny",
        wanted=count,
        on_demand=count,
        spot=0,
        num_ready=0,
        num_loading=0,
        num_requests=0,
        num_tokens=0,
        work_seconds=0.0,
        due_at=None,
        engine=None,
        cold_start_seconds=None,
        short_since=None,
        decided_at=datetime.now(UTC),
    )
    with store.transaction() as session:
        scaling.publish(session, [decision])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_as_many_run_as_are_wanted_and_a_busy_one_stays(
    store: Store, local: LocalWorkers, output: io.StringIO
) -> None:
    def pids() -> list[int]:
        return [int(line.split()[-1]) for line in output.getvalue().splitlines() if "pid" in line]

    local.look()
    assert pids() == []
    want(store, 2)
    local.look()
    busy, idle = sorted(eventually(lambda: len(pids()) == 2 and pids()))
    name = f"gpu@{socket.gethostname()}/{busy}-1a2b3c"
    with store.transaction() as session:
        workers.seen(session, name=name, queue=GPU_QUEUE, slots=1, info={}, model=MODEL)
    submit(store, num_requests=1, shard_size=1)
    claimed = held(store, 1, worker=name)

    want(store, 0)
    local.look()
    eventually(lambda: not is_alive(idle))
    local.look()
    assert is_alive(busy)

    run_to_the_end(store, claimed)
    local.look()
    eventually(lambda: not is_alive(busy))
    want(store, 1)
    eventually(lambda: (local.look(), len(pids()) == 3)[1], what="a third worker")


def test_a_worker_whose_configuration_is_wrong_ends_it(store: Store, local: LocalWorkers) -> None:
    local.command = f"sh -c 'echo HEADRACE_MODEL: say why; exit {EXIT_CONFIGURATION}'"
    want(store, 1)
    eventually(lambda: (local.look(), local.stopping.is_set())[1])
    assert local.refusal is not None
    assert "say why" in local.refusal
