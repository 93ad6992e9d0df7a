"""A run ends the requests that are out of time, and goes on with the others."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine
from tests.worker.runs.test_shard_runner import Bench
from worker.contract.states import BatchStatus
from worker.runs.run import Ending
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    with ThreadPoolExecutor(2) as pool:
        bench = Bench(store, pool, FakeEngine())
        yield bench
        bench.draining.set()


@pytest.mark.parametrize("seconds", [0.001, 0.3], ids=["before it is claimed", "while it runs"])
def test_what_is_out_of_time_fails_with_its_output_so_far(bench: Bench, seconds: float) -> None:
    asked = [NewRequest(prompt=f"prompt {i}", max_tokens=10, num_prompt_tokens=3) for i in range(3)]
    asked[1] = replace(asked[1], timeout_seconds=seconds)
    bench.engine.partial = {(2, 0): (5, 6)}
    ending = bench.start_on(NewBatch(SamplingParams(max_tokens=10), asked))
    eventually(lambda: bench.view().num_failed == 1)
    assert not ending.done()
    bench.engine.finish(0, 2)
    assert ending.result(60) is Ending.FINISHED
    late, *others = bench.results()
    assert (late.position, late.outcome, late.error_code) == (1, "failed", "timeout")
    assert (late.output, late.finish_reason, late.num_output_tokens) == ("text of 2", "error", 2)
    assert {one.outcome for one in others} == {"completed"}
    assert bench.view().status is BatchStatus.COMPLETED
