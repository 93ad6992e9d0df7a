"""The prefix cache on a running engine: metered, cleared, and never wrong under any admission policy."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.tiny_llama import reference_tokens
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.config import ADMISSIONS
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.generation import GenerationRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.requests.share import Share

HEAD = tuple(range(20, 36))  # four Blocks
WAIT_SECONDS = 60.0


def test_hits_and_evictions_are_counted(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, num_blocks=32)
    run(engine, requests_for([(*HEAD, 5), (*HEAD, 6)], greedy(4)))
    assert engine.stats.queried_tokens == 34
    assert engine.stats.cached_tokens == 16
    assert (engine.stats.cached_tokens, engine.stats.queried_tokens) == (16, 34)
    assert engine.stats.evictions == 0
    run(engine, requests_for([(7,) * 120], greedy(4)))
    assert engine.stats.evictions > 0


def read(engine: Engine, request: EmbeddingRequest | ScoringRequest) -> int:
    engine.add(request)
    while True:
        for reading in engine.step().readings:
            return reading.num_cached_tokens


@pytest.mark.parametrize(("shares_prefixes", "of_another"), [(False, 0), (True, 16)])
def test_a_group_finds_what_it_has_sent_itself(
    tiny_llama: Path, shares_prefixes: bool, of_another: int
) -> None:
    engine = make_engine(tiny_llama, shares_prefixes=shares_prefixes)
    alpha, beta = Share("alpha"), Share("beta")
    prompt = (*HEAD, 5)

    def cached(share: Share) -> list[int]:
        requests = [replace(one, share=share) for one in requests_for([prompt, prompt], greedy(4))]
        return [one.num_cached_tokens for one in run(engine, requests)]

    assert cached(alpha) == [0, 16]
    assert cached(alpha) == [16, 16]
    assert cached(beta) == [of_another, 16]
    assert read(engine, EmbeddingRequest(1, prompt, share=alpha)) == 16
    assert read(engine, ScoringRequest(2, prompt, [[7], [8]], share=alpha)) == 16
    assert read(engine, EmbeddingRequest(3, prompt, share=Share("gamma"))) == of_another
    assert read(engine, ScoringRequest(4, prompt, [[7], [8]], share=Share("delta"))) == of_another


def test_groups_do_not_wait_for_one_another(tiny_llama: Path) -> None:
    """Who computes a prefix now is waited for by its own group only: a wait would tell of it too."""
    engine = make_engine(tiny_llama)
    for index, share in enumerate((Share("alpha"), Share("alpha"), Share("beta"))):
        engine.add(replace(requests_for([(*HEAD, 5)], greedy(4), first_id=index)[0], share=share))
    engine.step()
    assert [one.share.group for one in engine._scheduler.running] == ["alpha", "beta"]
    run(engine, ())


def test_without_a_cache_nothing_is_looked_up(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, enable_prefix_cache=False)
    run(engine, requests_for([(*HEAD, 5), (*HEAD, 6)], greedy(4)))
    engine.clear_prefix_cache()
    assert engine.stats.queried_tokens == 0


def test_clear_forgets_also_in_the_middle(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    expected = reference_tokens(tiny_llama, (*HEAD, 5), 12)
    (first,) = run(engine, requests_for([(*HEAD, 5)], greedy(12)))
    (again,) = run(engine, requests_for([(*HEAD, 5)], greedy(12)))
    engine.clear_prefix_cache()
    engine.add(requests_for([(*HEAD, 5)], greedy(12), first_id=1)[0])
    engine.step()
    engine.clear_prefix_cache()
    engine.step()
    late, cleared = run(engine, requests_for([(*HEAD, 5)], greedy(12)))
    assert [one.num_cached_tokens for one in (first, again, cleared, late)] == [0, 16, 0, 0]
    assert {one.token_ids for one in (first, again, cleared, late)} == {expected}


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_tokens_are_right_after_preemption_eviction_cancellation_and_clear(
    tiny_llama: Path, admission: str
) -> None:
    numbers = random.Random(3)
    prompts = [
        (*HEAD[: numbers.randrange(17)], *(numbers.randrange(2, 6) for _ in range(6))) for _ in range(24)
    ]
    params = [greedy(numbers.choice([4, 60])) for _ in prompts]
    engine = make_engine(tiny_llama, num_blocks=32, admission=admission)
    for index, prompt in enumerate(prompts):
        engine.add(GenerationRequest(index, prompt, params[index]))
    done = {}
    for number in range(2000):
        if not engine.has_unfinished:
            break
        if number == 5:
            engine.cancel(3)
            engine.cancel(20)
        if number == 40:
            engine.clear_prefix_cache()
        for completion in engine.step().completions:
            done[completion.id] = completion
        engine.check_integrity()
    assert len(done) == 24
    assert engine.stats.evictions > 0
    assert engine.stats.preemptions > 0
    for index, prompt in enumerate(prompts):
        expected = reference_tokens(tiny_llama, prompt, params[index].max_tokens)
        got = done[index].token_ids
        assert got == expected[: len(got)]
        assert len(got) == len(expected) or done[index].finish_reason == "cancelled"


def test_the_thread_clears_even_while_idle(tiny_llama: Path) -> None:
    thread = EngineThread(lambda: make_engine(tiny_llama))
    thread.start()
    try:
        cached = []
        for must_clear in (False, False, True):
            if must_clear:
                thread.clear_prefix_cache()
            submission = thread.submit(requests_for([(*HEAD, 5)], greedy(2)))
            (completion,) = submission.take(WAIT_SECONDS)
            cached.append(completion.num_cached_tokens)
        assert cached == [0, 16, 0]
        assert (thread.stats.cached_tokens, thread.stats.queried_tokens) == (16, 51)
    finally:
        thread.stop()
