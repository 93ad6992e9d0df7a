"""Memory runs out while the engine runs ahead: each pending row still reads the token of its own Sequence.

The CPU's kernels play the device, which runs out of memory at any point of a Step, beside everything else
that moves Sequences: too few Blocks, urgent work, cancellation, and going on from known tokens.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.fixtures.generation import greedy, make_engine
from tests.fixtures.scheduling import make_sequence
from worker.engine.choosing import sampler
from worker.engine.choosing.chosen_tokens import TokensOnDevice
from worker.engine.engine import Engine
from worker.engine.models.step_input import StepInput
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.running import model_runner
from worker.engine.running.input_builder import InputBuilder, PackedStep
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan

PROMPTS = ((5, 6, 7), (9,) * 13, tuple(range(20, 31)), (3, 1, 4, 1, 5, 9), (8, 8), (*range(20, 28), 2, 2))
LONGEST = 14
POINTS = ("upload", "forward", "sampling", "tokens")
SETTINGS = {"num_blocks": 10, "max_model_len": 30, "max_num_sequences": 4, "max_tokens_per_step": 9}


class Device:
    """What a model runner has for a GPU, over the CPU's own placement; without memory at one point."""

    num_padding = 0

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails_at: str | None = None
        self.num_read = 0
        self._engine = engine
        self._own = engine._runner._placement
        runner = engine._runner
        runner._gpu = self
        execute, run = runner.execute, runner._run_on_gpu

        def note(plan: StepPlan) -> Any:
            self._plan = plan
            return execute(plan)

        def run_or_fail(step: PackedStep) -> tuple[Tensor, Tensor | None]:
            found = run(step)
            self._run_out("forward")
            return found

        def sample(logits: Tensor, sampling: Any) -> Tensor:
            self._run_out("sampling")
            return torch.tensor(sampler.sample(logits, sampling))

        arrive = TokensOnDevice.__post_init__

        def tokens(chosen: TokensOnDevice) -> None:
            self._run_out("tokens")
            arrive(chosen)

        monkeypatch.setattr(runner, "execute", note)
        monkeypatch.setattr(runner, "_run_on_gpu", run_or_fail)
        monkeypatch.setattr(model_runner, "sample_on_device", sample)
        monkeypatch.setattr(TokensOnDevice, "__post_init__", tokens)

    def _run_out(self, point: str) -> None:
        if self.fails_at == point:
            self.fails_at = None
            raise torch.OutOfMemoryError(f"at {point}")

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, None]:
        runner = self._engine._runner
        return runner._model.forward(self._place(step, before), runner._kv_cache), None

    def _place(self, step: PackedStep, before: Tensor | None) -> StepInput:
        owners = [entry.sequence for entry in self._plan.entries for _ in range(entry.num_tokens)]
        assert len(owners) == len(step.token_ids)
        token_ids = step.token_ids.copy()
        for row, place in step.pending:
            running = self._engine._steps.running
            assert running is not None
            assert running.sequences[place] is owners[row], "a row reads another Sequence's token"
            assert before is not None
            token_ids[row] = before[place]
            self.num_read += 1
        self._run_out("upload")
        return self._own.place(replace(step, token_ids=token_ids))


class Run:
    """An engine over such a device, what was asked of it, and what it has answered."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[int, GenerationRequest] = {}
        self.done: dict[int, Completion] = {}
        self._engine = engine
        self._device = Device(engine, monkeypatch)

    def add(self, prompt: int, max_tokens: int, is_urgent: bool, has_logprobs: bool) -> None:
        params = greedy(max_tokens, logprobs=1 if has_logprobs else None)
        self._add(GenerationRequest(len(self.asked), PROMPTS[prompt], params, priority=int(is_urgent)))

    def run_out(self, point: str) -> None:
        self._device.fails_at = point

    def step(self) -> None:
        if self._engine.has_unfinished:
            self.done.update({int(str(one.id)): one for one in self._engine.step().completions})
            self._engine.check_integrity()

    def cancel(self, index: int, *, goes_on: bool = False) -> None:
        unfinished = [number for number in self.asked if number not in self.done]
        if not unfinished:
            return
        number = unfinished[index % len(unfinished)]
        request, known = self.asked[number], self._engine.output_so_far(number)
        self._engine.cancel(number)
        self.step()
        if goes_on and known and len(known) < request.params.max_tokens:
            self._add(replace(request, id=len(self.asked), output_token_ids=known))

    def resume(self, index: int) -> None:
        self.cancel(index, goes_on=True)

    def _add(self, request: GenerationRequest) -> None:
        self.asked[int(str(request.id))] = request
        self._engine.add(request)


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> dict[int, tuple[int, ...]]:
    """What an engine that is left alone says to each prompt."""
    engine = make_engine(tiny_llama, device="cpu")
    found = {}
    for index, prompt in enumerate(PROMPTS):
        engine.add(GenerationRequest(index, prompt, greedy(LONGEST)))
        while engine.has_unfinished:
            found |= {one.id: one.token_ids for one in engine.step().completions}
    return found


ACTIONS = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, len(PROMPTS) - 1),
        st.sampled_from((1, 4, LONGEST)),
        st.booleans(),
        st.sampled_from((False, False, False, True)),
    ),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
    st.tuples(st.just("run_out"), st.sampled_from(POINTS)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("resume"), st.integers(0, 9)),
)


SHORT, SHORTER = ("add", 0, LONGEST, False, False), ("add", 4, LONGEST, False, False)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, min_size=8, max_size=60))
@example(actions=[SHORT, SHORTER, ("step",), ("step",), ("run_out", "forward"), ("cancel", 0)])
def test_each_row_reads_its_own_sequences_token(
    actions: list[tuple[Any, ...]],
    tiny_llama: Path,
    wanted: dict[int, tuple[int, ...]],
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(make_engine(tiny_llama, device="cpu", **SETTINGS), monkeypatch)
        for name, *details in actions:
            getattr(run, name)(*details)
        for _ in range(2000):
            run.step()
    assert len(run.done) == len(run.asked), "a request without its outcome"
    for number, completion in run.done.items():
        request = run.asked[number]
        expected = wanted[PROMPTS.index(tuple(request.prompt))][: request.params.max_tokens]
        got = completion.token_ids
        if completion.error is not None:
            assert "ran out of memory" in completion.error
            continue
        assert got == expected[: len(got)]
        assert len(got) == len(expected) or completion.finish_reason == "cancelled"


def test_part_of_a_prompt_has_no_pending_row() -> None:
    """A Sequence that had to give way comes back before the host has seen its last token."""
    sequence = make_sequence(0, range(5))
    sequence.row, sequence.block_table, sequence.num_pending_tokens = 0, [2, 1], 1
    builder = InputBuilder(max_num_sequences=1, max_blocks_per_sequence=2, block_size=4)
    before = TokensOnDevice((sequence,), torch.tensor([7]))
    part = builder.build(StepPlan((ScheduledSequence(sequence, 0, 3, is_sampled=False),)), before)
    assert (part.token_ids.tolist(), part.pending) == ([0, 1, 2], ())
    rest = builder.build(StepPlan((ScheduledSequence(sequence, 3, 3, is_sampled=True),)), before)
    assert (rest.token_ids.tolist(), rest.pending) == ([3, 4, 0], ((2, 0),))
