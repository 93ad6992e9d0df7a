"""Steps started before the host has seen what the one before chose: the same tokens as one after another.

The CPU's kernels play the device, in int8, whose rows have the same bits in any batch.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.readings import run_all
from tests.fixtures.speculation import Oracle, guess_always
from tests.worker.engine.scheduling.test_step_meter import assert_pays_in_full
from worker.engine.choosing import sampler
from worker.engine.choosing.chosen_tokens import TokensOnDevice
from worker.engine.engine import Engine
from worker.engine.models.step_input import StepInput
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.generation import GenerationRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.running import model_runner
from worker.engine.running.input_builder import PackedStep
from worker.engine.speculation.waiting import Waiting
from worker.values.outcomes import FinishReason
from worker.values.sampling import SamplingParams

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no native bf16 products here"
)


class Device:
    """What a model runner has for a GPU, over the CPU's own placement."""

    num_padding = 0

    def __init__(self, engine: Engine) -> None:
        self._runner = engine._runner
        self.num_pending: list[int] = []

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, None]:
        return self._runner._model.forward(self._place(step, before), self._runner._kv_cache), None

    def _place(self, step: PackedStep, before: Tensor | None) -> StepInput:
        self.num_pending.append(len(step.pending))
        token_ids = step.token_ids.copy()
        for row, place in step.pending:
            assert token_ids[row] == 0
            token_ids[row] = before[place]
        return self._runner._placement.place(replace(step, token_ids=token_ids))


@pytest.fixture
def engines(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**settings: Any) -> tuple[Engine, Engine, Device]:
        """One that waits for every Step, one that does not."""
        plain, ahead = (
            make_engine(tiny_llama, **{"device": "cpu", "dtype": "int8"} | settings) for _ in range(2)
        )
        device = Device(ahead)
        ahead._runner._gpu = device
        monkeypatch.setattr(
            model_runner,
            "sample_on_device",
            lambda logits, sampling: torch.tensor(sampler.sample(logits, sampling)),
        )
        return plain, ahead, device

    return make


def mixture() -> list[GenerationRequest]:
    numbers = random.Random(5)
    prefix = [numbers.randrange(2, 300) for _ in range(21)]
    requests = []
    for index in range(30):
        prompt = [numbers.randrange(2, 300) for _ in range(numbers.randrange(1, 30))]
        params = SamplingParams(
            max_tokens=numbers.choice((1, 2, 7, 19)),
            temperature=numbers.choice((0.0, 1.0)),
            top_k=numbers.choice((0, 5)),
            seed=index,
            stop_token_ids=tuple(numbers.sample(range(320), 12)),
            stop=("e",) if index % 5 == 0 else (),
            n=3 if index % 7 == 3 else 1,
            repetition_penalty=1.3 if index % 11 == 4 else 1.0,
            logprobs=2 if index % 13 == 6 else None,
            prompt_logprobs=1 if index % 9 == 2 else None,
        )
        requests.append(GenerationRequest(index, prefix + prompt if index % 3 == 0 else prompt, params))
    return requests


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_sequences": 3, "max_tokens_per_step": 7},
        {"num_blocks": 16, "max_model_len": 60, "admission": "fifo"},
        {"max_model_len": 40, "enable_prefix_cache": False, "max_num_sequences": 30},
    ],
    ids=str,
)
def test_outcomes_are_those_of_one_step_after_another(settings: dict[str, Any], engines: Any) -> None:
    plain, ahead, device = engines(**settings)
    wanted, found = run(plain, mixture()), run(ahead, mixture())
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.choices == theirs.choices
        assert ours.prompt_logprobs == theirs.prompt_logprobs
        assert ours.error == theirs.error
    assert any(one.finish_reason is FinishReason.STOP for one in found)
    assert ahead.stats.decode_tokens == plain.stats.decode_tokens
    if "num_blocks" in settings:
        assert ahead.stats.preemptions
    assert sum(device.num_pending) > 50
    assert ahead.num_running == 0


def test_every_step_of_a_batch_is_started_ahead(engines: Any) -> None:
    """All but the first find their tokens on the device, and none is run for a token beyond the last."""
    plain, ahead, device = engines()
    requests = requests_for([[5, 6, 7], [9, 10]], greedy(6))
    assert [one.token_ids for one in run(ahead, requests)] == [one.token_ids for one in run(plain, requests)]
    assert device.num_pending == [0, 2, 2, 2, 2, 2]


def test_a_token_after_the_end_is_dropped(engines: Any) -> None:
    plain, ahead, device = engines()
    (free,) = run(plain, requests_for([[5, 6, 7]], greedy(8)))
    end = free.token_ids[3]
    first = free.token_ids.index(end)
    (found,) = run(ahead, requests_for([[5, 6, 7]], greedy(8, stop_token_ids=(end,))))
    assert found.token_ids == free.token_ids[: first + 1]
    assert found.finish_reason is FinishReason.STOP
    assert len(device.num_pending) == first + 2  # one Step more than it has tokens
    assert ahead.stats.decode_tokens == first + 1


def test_a_cancelled_request_keeps_what_the_host_has_seen(engines: Any) -> None:
    plain, ahead, _ = engines()
    (free,) = run(plain, requests_for([[5, 6, 7]], greedy(8)))
    ahead.add(GenerationRequest(0, [5, 6, 7], greedy(8)))
    for _ in range(4):
        assert not ahead.step().completions
    assert isinstance(ahead._steps.running, TokensOnDevice)
    ahead.cancel(0)
    (found,) = ahead.step().completions
    assert found.token_ids == free.token_ids[:3]
    assert found.finish_reason is FinishReason.CANCELLED
    assert not ahead.has_unfinished
    ahead.check_integrity()
    (again,) = run(ahead, requests_for([[5, 6, 7]], greedy(8), first_id=1))
    assert again.token_ids == free.token_ids


def test_requests_pay_for_their_steps_before_they_end(engines: Any) -> None:
    plain, ahead, _ = engines()
    requests = requests_for([[5, 6, 7], [9, 10]], greedy(6))
    done = run(ahead, requests)
    run(plain, requests)
    assert ahead.stats.computed_tokens == plain.stats.computed_tokens
    assert sum(one.seconds.prefill for one in done) == pytest.approx(ahead.stats.prefill_seconds)
    assert sum(one.seconds.decode for one in done) == pytest.approx(ahead.stats.decode_seconds)
    assert all(one.seconds.prefill > 0 and one.seconds.decode > 0 for one in done)


def test_readings_beside_steps_that_run_ahead_pay_for_all_of_theirs(engines: Any) -> None:
    """The last Step of a reading is charged only after the Step that follows it was started."""
    _, ahead, _ = engines(max_tokens_per_step=8)
    done = run_all(
        ahead,
        [
            GenerationRequest(0, [1, 2, 3] * 5, greedy(30)),
            EmbeddingRequest(1, (4, 5, 6, 7) * 4),
            ScoringRequest(2, (8, 9, 10), [(11, 12), (13, 14, 15)]),
        ],
    )
    assert_pays_in_full(done, ahead.stats)


class Sometimes(Waiting):
    """Waits for some Steps by chance, or for all or none of them."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.numbers, self.chance = random.Random(3), chance
        self.plan: tuple[object, bool] = (None, False)

    def wants(self, plan: Any) -> bool:
        """Say the same each time that it is asked about a Step."""
        key = tuple((entry.sequence.arrival, entry.start) for entry in plan.entries)
        if self.plan[0] != key:
            self.plan = key, self.numbers.random() < self.chance
        return self.plan[1]


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "settings", [{}, {"num_blocks": 16, "max_model_len": 60, "admission": "fifo"}], ids=str
)
def test_steps_that_wait_have_guesses_and_the_same_outcomes(
    settings: dict[str, Any], chance: float, engines: Any
) -> None:
    plain, ahead, device = engines(speculates=True, **settings)
    plain._speculation.use([])
    requests = [one for one in mixture() if one.params.n == 1]
    wanted = run(plain, requests)
    outputs = {tuple(one.prompt): [done.token_ids] for one, done in zip(requests, wanted, strict=True)}
    guess_always(ahead, Oracle(outputs, 0.2))
    ahead._speculation._waiting = Sometimes(chance)
    found = run(ahead, requests)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.choices == theirs.choices
        assert ours.prompt_logprobs == theirs.prompt_logprobs
    assert (ahead.stats.lookup_right_tokens > 0) == (chance > 0)
    assert (sum(device.num_pending) > 0) == (chance < 1)


def test_a_lone_request_finds_out_that_waiting_pays(engines: Any) -> None:
    """With the clock of the Steps: one that waits takes longer, and yields several tokens."""
    plain, ahead, device = engines(speculates=True)
    plain._speculation.use([])
    requests = requests_for([[5, 6, 7]], greedy(120))
    (wanted,) = run(plain, requests)
    guess_always(ahead, Oracle({(5, 6, 7): [wanted.token_ids]}, 0.0))
    clock = iter(range(1_000_000))
    ahead._speculation._waiting = Waiting(lambda: float(next(clock)))
    (found,) = run(ahead, requests)
    assert found.token_ids == wanted.token_ids
    assert 64 < sum(device.num_pending) < 80, "until the first try, and then no more"
    assert ahead.stats.steps < 95
