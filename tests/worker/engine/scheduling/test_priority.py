"""What gives way to a higher priority goes on later, and ends as if it had been alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from worker.engine.requests.share import Share

ROWS = 4
PROMPTS = [(7, number, 9, 3) for number in range(1, 2 * ROWS + 1)]


@pytest.mark.parametrize("num_blocks", [None, 30])
@pytest.mark.parametrize("enable_prefix_cache", [False, True])
def test_no_token_changes(tiny_llama: Path, num_blocks: int | None, *, enable_prefix_cache: bool) -> None:
    options = {"num_blocks": num_blocks, "enable_prefix_cache": enable_prefix_cache}
    low = [replace(one, share=Share("one", batch="low")) for one in requests_for(PROMPTS, greedy(24))]
    high = [
        replace(one, share=Share("one", priority=5, batch="high"))
        for one in requests_for([(5, number) for number in range(1, ROWS + 1)], greedy(12), first_id=100)
    ]
    alone = run(make_engine(tiny_llama, max_num_sequences=ROWS, **options), low)
    engine = make_engine(tiny_llama, max_num_sequences=ROWS, **options)
    for request in low:
        engine.add(request)
    for _ in range(10):
        assert not engine.step().completions
    ended = run(engine, high)
    assert engine.stats.preemptions >= ROWS - 1
    assert [one.token_ids for one in ended if int(str(one.id)) < 100] == [one.token_ids for one in alone]
    assert len(ended) == len(low) + len(high)
