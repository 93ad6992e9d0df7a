"""A draft that equals its model is always right, so one wrong guess shows that its cache was wrong."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.speculation import FixedTimes, ignore_time
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine
from worker.engine.models.registry import read_architecture
from worker.engine.requests.errors import ConfigError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.running.kv_cache import size_kv_cache
from worker.engine.running.model_runner import TORCH_DTYPES

pytestmark = pytest.mark.usefixtures("only_on_cpu")

PROMPTS = [(5, 6, 7), (9, 8) * 10, (3, 1, 4, 1, 5, 9), (9, 8) * 7 + (8, 8), (40, 41, 42, 43)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target"), hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(
        tmp_path_factory.mktemp("other"), hidden_size=64, intermediate_size=128, num_hidden_layers=1, seed=9
    )


def drafting(checkpoint: Path, draft: Path, **overrides: object) -> Engine:
    """An engine that takes all that its draft model guesses, and nothing else."""
    engine = make_engine(checkpoint, dtype="int8", speculates=True, draft_model=draft, **overrides)
    engine._speculation.use(engine._speculation.proposers[1:])
    engine._speculation.times = FixedTimes(10.0)  # type: ignore[assignment]
    ignore_time(engine)
    return engine


def mixed(count: int = 3) -> list[GenerationRequest]:
    params = [greedy(30), greedy(30, temperature=1.0, seed=4), greedy(30, temperature=0.9, top_p=0.9, seed=5)]
    return [
        GenerationRequest(index, prompt, params[index % len(params)])
        for index, prompt in enumerate(PROMPTS * count)
    ]


def test_the_models_own_guesses_are_right_greedy_and_sampled(checkpoint: Path) -> None:
    requests = mixed()
    expected = run(make_engine(checkpoint, dtype="int8"), requests)
    engine = drafting(checkpoint, checkpoint)
    done = run(engine, requests)
    assert [one.token_ids for one in done] == [one.token_ids for one in expected]
    assert engine.stats.draft_right_tokens == engine.stats.draft_guessed_tokens > 200
    assert engine.stats.steps < 30, "of 30 tokens each"


def test_its_cache_stays_right_whatever_happens(checkpoint: Path) -> None:
    """Preempted, cancelled and resumed, prompts in pieces, shared prefixes, and other guesses in between."""
    chance = random.Random(2)
    requests = mixed(4)
    expected = run(make_engine(checkpoint, dtype="int8"), requests)
    engine = drafting(
        checkpoint, checkpoint, num_blocks=22, max_model_len=64, max_tokens_per_step=9, max_num_sequences=5
    )
    for request in requests:
        engine.add(request)
    done: dict[int, Completion] = {}
    while engine.has_unfinished:
        done |= {int(str(one.id)): one for one in engine.step().completions}
        engine.check_integrity()
        engine._speculation._num_paused = chance.choice([0, 0, 2])
        open_ids = [one.id for one in requests if one.id not in done]
        if open_ids and chance.random() < 0.05:
            name = chance.choice(open_ids)
            engine.cancel(name)
            done |= {int(str(one.id)): one for one in engine.step().completions}
            cancelled = done.pop(int(str(name)))
            engine.add(replace(requests[int(str(name))], output_token_ids=cancelled.token_ids))
    assert [done[index].token_ids for index in range(len(requests))] == [one.token_ids for one in expected]
    assert engine.stats.draft_right_tokens == engine.stats.draft_guessed_tokens > 20
    assert engine.stats.preemptions


def test_another_model_is_sometimes_right_and_changes_nothing(checkpoint: Path, other: Path) -> None:
    requests = mixed()
    expected = run(make_engine(checkpoint, dtype="int8"), requests)
    engine = drafting(checkpoint, other)
    assert [one.token_ids for one in run(engine, requests)] == [one.token_ids for one in expected]
    assert engine.stats.draft_right_tokens < engine.stats.draft_guessed_tokens


def test_its_memory_counts(checkpoint: Path, other: Path) -> None:
    config = make_engine(checkpoint).config
    sizes = [
        size_kv_cache(one, read_architecture(checkpoint), TORCH_DTYPES["f32"], 1 << 20).block_bytes
        for one in (config, replace(config, draft_model=checkpoint), replace(config, draft_model=other))
    ]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == 1.5 * sizes[0]


def test_a_draft_of_another_tokenizer_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["another"] = len(tokenizer["model"]["vocab"])
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="is not that of"):
        make_engine(checkpoint, speculates=True, draft_model=tmp_path)


def test_a_pass_that_costs_more_than_it_yields_is_not_run(checkpoint: Path) -> None:
    engine = drafting(checkpoint, checkpoint)
    engine._speculation.times = FixedTimes(1e-9)  # type: ignore[assignment]
    run(engine, requests_for(PROMPTS[:1], greedy(100)))
    assert engine.stats.draft_guessed_tokens <= 12, "only until a pass was measured"
