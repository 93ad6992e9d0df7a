"""Real processes of this machine, one at a time, follow the work of several models."""

import io
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from worker.contract.messages import GPU_QUEUE
from worker.contract.models import Model
from worker.contract.processes import SWITCHING, ModelState
from worker.contract.states import Lane
from worker.preflight import ConfigurationError, check
from worker.scaling.model_choice import WORTH
from worker.settings import DEMO_MODEL, EXIT_CONFIGURATION, Settings
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import control
from worker.store.watching import scaling, workers
from worker.switching import ModelSwitch
from worker.up import without_other_starters

ONE, OTHER = Model("one", "1" * 32, "a" * 32), Model("other", "2" * 32, "a" * 32)
PLACES = {Path("/models/one"): ONE, Path("/models/other"): OTHER}
COMMAND = "sh -c 'echo $$ $HEADRACE_MODEL; exec sleep 600'"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def switch(store: Store, clock: Clock) -> Iterator[ModelSwitch]:
    switch = ModelSwitch(store, PLACES, COMMAND, threading.Event(), output=io.StringIO(), clock=clock)
    yield switch
    switch.stop()


def starts(switch: ModelSwitch) -> list[tuple[int, str]]:
    """Return the process and the model of each worker that was started."""
    assert isinstance(switch.output, io.StringIO)
    said = [line.split()[-2:] for line in switch.output.getvalue().splitlines() if "/models/" in line]
    return [(int(pid), Path(directory).name) for pid, directory in said]


def started(switch: ModelSwitch, count: int) -> int:
    """Look until so many workers were started; return the process of the last."""
    return int(eventually(lambda: (switch.look(), len(starts(switch)) == count and starts(switch)[-1])[1])[0])


def load(store: Store, switch: ModelSwitch, pid: int, model: Model) -> str:
    """Have a worker say that it has loaded its model; return its identity."""
    name = f"gpu@{socket.gethostname()}/{pid}-1a2b3c"
    with store.transaction() as session:
        workers.seen(session, name=name, queue=GPU_QUEUE, slots=1, info={}, model=model.fingerprint)
    switch.look()
    return name


def end(store: Store, name: str) -> None:
    with store.transaction() as session:
        workers.gone(session, name)


def states(store: Store) -> tuple[ModelState, ModelState]:
    with store.transaction() as session:
        (row,) = workers.live(session, SWITCHING)
        said = row.info["models"]
    return said[ONE.fingerprint], said[OTHER.fingerprint]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_worker_leaves_a_model_without_work(store: Store, switch: ModelSwitch, clock: Clock) -> None:
    first = started(switch, 1)
    assert starts(switch) == [(first, "one")]
    assert states(store) == ("loading", "unloaded")
    submit(store, num_requests=1, model=OTHER)
    switch.look()
    assert is_alive(first), "it is loading: what a switch costs is not known"
    clock.now += 40
    name = load(store, switch, first, ONE)
    assert switch.switch_seconds == 40
    assert states(store) == ("unloaded", "loading")
    end(store, name)
    clock.now += 25
    second = started(switch, 2)
    assert not is_alive(first)
    assert starts(switch)[-1] == (second, "other")
    name = load(store, switch, second, OTHER)
    assert states(store) == ("unloaded", "loaded")
    assert switch.switch_seconds == 25, "from the end of one to the start of the other"
    # It stays while it holds a shard, and after the last one too: nobody waits for another model.
    claimed = held(store, 1, worker=name)
    switch.look()
    run_to_the_end(store, claimed)
    switch.look()
    assert is_alive(second)
    switch.stop()
    assert not is_alive(second)
    with store.transaction() as session:
        assert workers.live(session, SWITCHING) == []


def test_work_that_is_due_earlier_gets_its_turn(store: Store, switch: ModelSwitch, clock: Clock) -> None:
    submit(store, num_requests=2, model=ONE)
    first = started(switch, 1)
    clock.now += 10
    name = load(store, switch, first, ONE)
    held(store, 1, worker=name)
    submit(store, num_requests=1, model=OTHER, completion_window=timedelta(minutes=9))
    clock.now += 10 * WORTH - 1
    switch.look()
    assert states(store) == ("loaded", "unloaded")
    clock.now += 1
    switch.look()
    assert states(store) == ("unloaded", "loading")
    assert starts(switch) == [(first, "one")]
    end(store, name)
    started(switch, 2)
    assert starts(switch)[-1][1] == "other"


def test_the_first_worker_gets_the_model_with_the_earliest_work(store: Store, switch: ModelSwitch) -> None:
    submit(store, num_requests=1, model=ONE)
    submit(store, num_requests=1, model=OTHER, lane=Lane.INTERACTIVE)
    started(switch, 1)
    assert starts(switch)[0][1] == "other"


def test_a_wrong_configuration_ends_it(switch: ModelSwitch) -> None:
    switch.command = f"sh -c 'echo HEADRACE_MODEL: say why; exit {EXIT_CONFIGURATION}'"
    eventually(lambda: (switch.look(), switch.stopping.is_set())[1])
    assert switch.refusal is not None
    assert "say why" in switch.refusal


def test_what_counts_as_work(store: Store) -> None:
    models = [ONE.fingerprint, OTHER.fingerprint]

    def work(worker: str | None = None) -> dict[str, tuple[int, bool]]:
        with store.transaction() as session:
            found = scaling.work_of(session, models, target_seconds=3600, worker=worker)
        return {model[0]: (round(one.due_seconds, -1), one.has_clients) for model, one in found.items()}

    assert work() == {}
    submit(store, num_requests=1, model=Model("third", "3" * 32, ""))
    plain = submit(store, num_requests=1, model=ONE)
    assert work() == {"1": (3600, False)}
    submit(store, num_requests=1, model=ONE, completion_window=timedelta(minutes=10))
    submit(store, num_requests=1, model=OTHER, lane=Lane.INTERACTIVE)
    assert work() == {"1": (600, False), "2": (0, True)}
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET paused_at = now() WHERE lane = 'interactive'"))
    claimed = held(store, 3, worker="gpu@mine")
    assert work() == {"1": (3600, False)}
    assert work("gpu@mine") == {"1": (600, False)}, "what its own worker runs counts"
    run_to_the_end(store, claimed)
    with store.transaction() as session:
        batches.cancel(session, plain)
        control.resume(session, plain)
    assert work("gpu@mine") == {}


def test_who_starts_the_gpu_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["web", "gpu", "autoscale", "switching"]
    assert without_other_starters(names, Settings()) == ["web", "gpu"]  # type: ignore[call-arg]
    assert without_other_starters(names, Settings(max_workers=1)) == ["web", "autoscale"]  # type: ignore[call-arg]
    monkeypatch.setenv("HEADRACE_MODELS", f"{DEMO_MODEL}, /none")
    config = Settings()  # type: ignore[call-arg]
    assert without_other_starters(names, config) == ["web", "switching"]
    with pytest.raises(ConfigurationError, match="HEADRACE_MODELS: "):
        check(config, ["switching"])
    with pytest.raises(ConfigurationError, match="does not go with HEADRACE_MAX_WORKERS"):
        check(config.model_copy(update={"max_workers": 1}), ["switching"])
