"""A Step that goes wrong costs the request it went wrong for, and no other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.engine import Engine
from worker.engine.requests.generation import GenerationRequest
from worker.engine.running.input_builder import PackedStep

PROMPTS = [(5, 6, 7), (9,) * 20, (3, 1, 4, 1, 5, 9), (8, 8)]


def spoil(engine: Engine, change: Callable[[torch.Tensor, PackedStep], None]) -> None:
    """Change each Step's logits in place."""
    runner = engine._runner
    if runner._gpu is not None:
        run = runner._run_on_gpu

        def run_and_spoil(step: PackedStep) -> tuple[torch.Tensor, torch.Tensor | None]:
            hidden, logits = run(step)
            if logits is not None:
                logits = logits.clone()
                change(logits, step)
            return hidden, logits

        runner._run_on_gpu = run_and_spoil  # type: ignore[method-assign]
        return
    model, choose = runner._model, runner._choose
    compute, steps = model.logits, list[PackedStep]()

    def keep_step(step: PackedStep) -> Chosen:
        steps[:] = [step]
        return choose(step)

    def spoiled(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden).clone()
        change(logits, steps[0])
        return logits

    runner._choose = keep_step  # type: ignore[method-assign]
    model.logits = spoiled  # type: ignore[method-assign]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_fail_their_request_only(
    tiny_llama: Path, value: float, temperature: float
) -> None:
    params = greedy(8, temperature=temperature, seed=3, logprobs=1)
    requests = requests_for(PROMPTS, params)
    whole = run(make_engine(tiny_llama), requests)
    engine = make_engine(tiny_llama)

    def change(logits: torch.Tensor, step: PackedStep) -> None:
        for row, sequence in enumerate(step.sampled):
            if sequence.request_id == 2 and sequence.num_output_tokens == 4:
                logits[row, 17] = value

    spoil(engine, change)
    found = run(engine, requests)
    assert found[2].error == "the model's logits are not finite numbers"
    assert found[2].num_output_tokens == 4
    assert [one.token_ids for one in found if one.id != 2] == [one.token_ids for one in whole if one.id != 2]
    # Nobody shares what the bad Sequence has computed.
    assert engine._scheduler.block_pool.match(engine_hashes(engine, PROMPTS[2])) == []


def engine_hashes(engine: Engine, prompt: tuple[int, ...]) -> list[bytes]:
    from worker.engine.scheduling.prefix_cache import extend_hashes

    hashes: list[bytes] = []
    extend_hashes(hashes, list(prompt), engine.config.block_size)
    return hashes


def starve(engine: Engine, monkeypatch: pytest.MonkeyPatch, too_large: Callable[[PackedStep], bool]) -> None:
    """Have the forward of Steps that are too large run out of memory, as torch says it on a CPU."""
    runner = engine._runner
    choose = runner._choose

    def starved(step: PackedStep) -> Chosen:
        if too_large(step):
            torch.empty(1 << 60, dtype=torch.uint8)
        return choose(step)

    monkeypatch.setattr(runner, "_choose", starved)


def test_out_of_memory_shrinks_the_step_and_goes_on(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_for(PROMPTS, greedy(24))
    whole = run(make_engine(tiny_llama), requests)
    engine = make_engine(tiny_llama)
    starve(engine, monkeypatch, lambda step: len(step.token_ids) > 3)
    found = run(engine, requests)
    assert [one.token_ids for one in found] == [one.token_ids for one in whole]
    assert engine.stats.shrunk_steps > 1


def test_steps_grow_again(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama)
    is_short = True
    starve(engine, monkeypatch, lambda step: is_short and len(step.token_ids) > 2)
    run(engine, requests_for(PROMPTS, greedy(4)))
    assert engine._scheduler.limits.max_tokens <= 2
    is_short = False
    for _ in range(12):
        run(engine, requests_for(PROMPTS, greedy(100)))
    limits = engine._scheduler.limits
    assert (limits.max_num_sequences, limits.max_tokens) == (8, engine.config.max_tokens_per_step)


def test_a_request_that_fits_no_step_fails_alone(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama)
    bad = GenerationRequest(9, (7, 7, 7, 7, 7), greedy(24))
    starve(engine, monkeypatch, lambda step: any(one.request_id == 9 for one in step.sampled))
    requests = requests_for(PROMPTS, greedy(24))
    found = run(engine, [*requests, bad])
    whole = run(make_engine(tiny_llama), requests)
    assert "ran out of memory" in str(found[-1].error)
    assert [one.token_ids for one in found[:-1]] == [one.token_ids for one in whole]


def test_other_errors_are_the_engines_end(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_llama)

    def broken(_: object) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine._runner, "_choose", broken)
    engine.add(GenerationRequest(1, (5, 6), greedy(2)))
    with pytest.raises(RuntimeError, match="device is lost"):
        engine.step()
