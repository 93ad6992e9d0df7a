"""The engine's way over a GPU, with its kernels interpreted on CPU tensors where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels.device
from kernels.kv_write import GpuLayerCache
from tests.fixtures.generation import greedy, make_engine, requests_for, run
from tests.fixtures.speculation import (
    FixedTimes,
    TreeOracle,
    guess_always,
    guess_with_heads,
    ignore_time,
    write_heads,
)
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.engine.engine import Engine
from worker.engine.models.registry import read_architecture
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.generation import GenerationRequest
from worker.engine.running import model_runner
from worker.engine.running.cuda_graphs import graph_sizes, output_rows_of, size_for
from worker.engine.running.gpu_step_input import AttentionPlanner
from worker.engine.running.gpu_steps import PaddedStep, StepSize, run_largest_step
from worker.engine.running.input_builder import PackedStep
from worker.values.sampling import SamplingParams

# Of numpy, in the interpreter: the exponential in tanh may overflow, whose inverse is then rightly 0, and
# rows of padding hold whatever was in their memory.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]

PROMPTS = ([5, 6, 7], [9] * 11, list(range(20, 37)))
SETTINGS = {"max_num_sequences": 4, "max_tokens_per_step": 12, "max_model_len": 48, "num_blocks": 40}
MODELS = {
    "llama": {},
    "qwen3": {"config_class": "Qwen3Config", "head_dim": 20, "attention_bias": True, "num_hidden_layers": 1},
    "gemma3": {
        "config_class": "Gemma3TextConfig",
        "head_dim": 16,
        "query_pre_attn_scalar": 30,
        "sliding_window": 10,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
}
MIXTURE = {
    "config_class": "Qwen3MoeConfig",
    "num_hidden_layers": 2,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(kernels.device, "uses_triton", lambda _: True)
        monkeypatch.setattr(model_runner, "open_device", lambda _: torch.device("cpu"))


class EagerGraphs:
    """Small Steps as for graphs, padded and from fixed places, but launched one by one."""

    SIZES = (StepSize(4, 4), StepSize(4, 16), StepSize(4, 48))
    num_rows = 0

    def __init__(self, engine: Engine) -> None:
        runner = engine._runner
        info = engine.model_info
        architecture = read_architecture(engine.config.model)
        planner = AttentionPlanner(architecture, runner._kv_cache[0], torch.float32, info.max_model_len)
        self.numbers: list[tuple[int, int]] = []  # of Sequences and tokens, in each Step
        self._padded = PaddedStep(
            runner._model,
            runner._kv_cache,
            planner,
            torch.device("cuda" if torch.cuda.is_available() else "cpu"),
            largest=self.SIZES[-1],
            max_model_len=info.max_model_len,
            tables=runner._gpu.tables,
            has_trees=True,
        )

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, Tensor] | None:
        size = size_for(step, self.SIZES)
        if size is None:
            return None
        self.numbers.append((len(step.num_tokens), len(step.token_ids)))
        self.num_rows = size.num_tokens
        self._padded.fill(step, size, before)
        hidden, logits = self._padded.forward(size)
        return output_rows_of(step, hidden), output_rows_of(step, logits)


def expected_of(model: Path) -> list[tuple[int, ...]]:
    """What the CPU's kernels make of the prompts."""
    engine = make_engine(model, device="cpu", **SETTINGS)
    return [one.token_ids for one in run(engine, requests_for(PROMPTS, greedy(5)))]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_a_cpu(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Prompts in chunks beside decode rows: every kernel, every Step's input."""
    model = write_tiny_llama(tmp_path, **MODELS[name])
    wanted = run(make_engine(model, device="cpu", **SETTINGS), requests_for(PROMPTS, greedy(4)))
    request.getfixturevalue("on_gpu")
    found = run(make_engine(model, device="cuda", **SETTINGS), requests_for(PROMPTS, greedy(4)))
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]


def test_trees_of_guesses_leave_the_tokens_of_a_cpu(tiny_llama: Path, request: pytest.FixtureRequest) -> None:
    """A rule has the host see each token before the next Step, so that there is something to guess from."""
    requests = requests_for(PROMPTS, greedy(8, repetition_penalty=1.2))
    wanted = [one.token_ids for one in run(make_engine(tiny_llama, device="cpu", **SETTINGS), requests)]
    request.getfixturevalue("on_gpu")
    engine = make_engine(tiny_llama, device="cuda", speculates=True, **SETTINGS)
    known = {tuple(prompt): [tokens] for prompt, tokens in zip(PROMPTS, wanted, strict=True)}
    guess_always(engine, TreeOracle(known, 0.1))
    assert [one.token_ids for one in run(engine, requests)] == wanted
    assert 5 < engine.stats.lookup_right_tokens < engine.stats.lookup_guessed_tokens


def always_wait(engine: Engine) -> None:
    """So that there is something to guess from before every Step, whatever the clock says."""
    waiting = engine._speculation._waiting
    assert waiting is not None
    waiting.wants = lambda plan: bool(plan.entries)  # type: ignore[method-assign]


def test_heads_guess_what_they_know(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In graphs or not, greedy and sampled; they know the texts, so some of what they guess is right."""
    model, heads = tmp_path / "model", tmp_path / "heads"
    model.mkdir()
    heads.mkdir()
    write_tiny_llama(model, hidden_size=64, intermediate_size=128)
    prompts = [(5, 6, 7), (9, 8, 9), (3, 1, 4)]
    requests = [
        *requests_for(prompts, greedy(30)),
        GenerationRequest(3, prompts[0], greedy(30, temperature=0.7, seed=3)),
    ]
    wanted = [one.token_ids for one in run(make_engine(model, device="cpu", **SETTINGS), requests)]
    write_heads(model, heads, [(*prompt, *tokens) for prompt, tokens in zip(prompts, wanted, strict=False)])
    request.getfixturevalue("on_gpu")
    engine = make_engine(heads, device="cuda", speculates=True, **SETTINGS)
    if not torch.cuda.is_available():
        engine._runner._gpu.graphs = EagerGraphs(engine)
    guess_with_heads(engine)
    always_wait(engine)
    assert [one.token_ids for one in run(engine, requests)] == wanted
    assert 10 < engine.stats.medusa_right_tokens < engine.stats.medusa_guessed_tokens
    assert 1 > engine._runner.medusa.shares[0] > 0.5


@pytest.mark.parametrize("is_own", [True, False])
def test_a_draft_model_guesses(is_own: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One that equals its model is always right, so its keys and values are; greedy and sampled."""
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    write_tiny_llama(model)
    write_tiny_llama(other, num_hidden_layers=1, seed=9)
    requests = [
        *requests_for(PROMPTS, greedy(20)),
        GenerationRequest(3, PROMPTS[0], greedy(20, temperature=0.7, seed=3)),
    ]
    wanted = [one.token_ids for one in run(make_engine(model, device="cpu", **SETTINGS), requests)]
    request.getfixturevalue("on_gpu")
    draft = model if is_own else other
    engine = make_engine(model, device="cuda", speculates=True, draft_model=draft, **SETTINGS)
    engine._speculation.use(engine._speculation.proposers[1:])
    engine._speculation.times = FixedTimes(10.0)
    ignore_time(engine)
    always_wait(engine)
    assert [one.token_ids for one in run(engine, requests)] == wanted
    stats = engine.stats
    if is_own:
        assert stats.draft_right_tokens == stats.draft_guessed_tokens > 40
    else:
        assert stats.draft_right_tokens < stats.draft_guessed_tokens


def test_sampled_tokens_and_rules_are_those_of_a_cpu(
    tiny_llama: Path, request: pytest.FixtureRequest
) -> None:
    requests = [
        GenerationRequest(0, PROMPTS[0], greedy(4, repetition_penalty=1.8, logprobs=2)),
        # Without top-k and top-p a CPU draws in the order of the vocabulary too.
        GenerationRequest(
            1, PROMPTS[1], SamplingParams(max_tokens=4, temperature=1.0, seed=7, ignore_eos=True)
        ),
    ]
    wanted = run(make_engine(tiny_llama, device="cpu", **SETTINGS), requests)
    request.getfixturevalue("on_gpu")
    found = run(make_engine(tiny_llama, device="cuda", **SETTINGS), requests)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    for ours, theirs in zip(found[0].logprobs or (), wanted[0].logprobs or (), strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]


def test_embeddings_are_those_of_a_cpu(tiny_llama: Path, request: pytest.FixtureRequest) -> None:
    def embed(engine: Engine) -> tuple[float, ...]:
        engine.add(EmbeddingRequest(0, PROMPTS[2]))
        while True:
            for reading in engine.step().readings:
                return reading.vector

    wanted = embed(make_engine(tiny_llama, device="cpu", **SETTINGS))
    request.getfixturevalue("on_gpu")
    assert embed(make_engine(tiny_llama, device="cuda", **SETTINGS)) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("fields", [{}, MIXTURE], ids=["llama", "qwen3_moe"])
def test_padded_decode_changes_no_token(
    fields: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = write_tiny_llama(tmp_path, **fields)
    wanted = expected_of(model)
    request.getfixturevalue("on_gpu")
    engine = make_engine(model, device="cuda", **SETTINGS)
    graphs = EagerGraphs(engine)
    engine._runner._gpu.graphs = graphs
    found = run(engine, requests_for(PROMPTS, greedy(5)))
    assert [one.token_ids for one in found] == wanted
    # Fewer than there is room for, and changing numbers.
    assert {(3, 3), (1, 1)} < set(graphs.numbers)
    assert any(num_tokens > num_sequences for num_sequences, num_tokens in graphs.numbers)


@pytest.mark.usefixtures("on_gpu")
def test_the_largest_step_writes_no_cache(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, device="cuda", **SETTINGS)
    runner, architecture = engine._runner, read_architecture(tiny_llama)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    block = GpuLayerCache(torch.ones(1, 4, 4, architecture.head_dim, device=device), None)
    with torch.inference_mode():
        out = run_largest_step(
            runner._model,
            [block, block],
            AttentionPlanner(architecture, block, torch.float32, 48),
            device,
            max_num_sequences=4,
            max_tokens=14,
            max_model_len=48,
        )
    assert out.shape == (4, architecture.vocab_size)
    assert out.isfinite().all()
    assert (block.blocks == 1).all()


def test_graph_sizes() -> None:
    def sizes(*limits: int, speculates: bool = False) -> list[tuple[int, int]]:
        return [tuple(size) for size in graph_sizes(*limits, speculates=speculates)]

    assert sizes(1, 100) == [(1, 1)]
    assert sizes(6, 100) == [(one, one) for one in (1, 2, 4, 6)]
    assert sizes(40, 100) == [(one, one) for one in (1, 2, 4, 8, 16, 32, 40)]
    assert sizes(2, 100, speculates=True)[2:] == [
        *((1, one) for one in (2, 4, 8, 13)),
        *((2, one) for one in (4, 8, 16, 26)),
    ]
    assert sizes(2, 8, speculates=True)[2:] == [(1, 2), (1, 4), (1, 8), (2, 4), (2, 8)]
    assert max(sizes(256, 8192, speculates=True)) == (256, 256)
    assert (16, 208) in sizes(256, 8192, speculates=True)


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [{}, MIXTURE], ids=["llama", "qwen3_moe"])
def test_the_cache_takes_what_is_free_and_graphs_replay(fields: dict[str, Any], tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path, **fields)
    engine = make_engine(model, device="cuda", max_num_sequences=4, max_model_len=48)
    assert engine.model_info.num_blocks == 4 * 12  # as many as can be used, of far more that would fit
    assert engine._runner._gpu.graphs is not None
    found = run(engine, requests_for(PROMPTS, greedy(5)))
    assert [one.token_ids for one in found] == expected_of(model)
