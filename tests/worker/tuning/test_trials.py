"""A trial's process: what it measures with the real engine, and every way in which it may end."""

from pathlib import Path

import pytest

from tests.fixtures.tiny_llama import reference_tokens, tiny_tokenizer, write_tiny_llama
from worker.tuning import trial_process
from worker.tuning.requests import TunedRequest, read_requests, write_requests
from worker.tuning.trial import measure
from worker.tuning.trial_process import TrialFailedError, TrialPrunedError, Trials
from worker.values.sampling import SamplingParams

PROMPTS = [(5, 6, 7), (9,) * 20, (3, 4, 5), (8, 9), (40, 41, 42), (7,)]
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tuned"))


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    file = tmp_path / "requests.jsonl"
    write_requests(file, [TunedRequest(prompt, GREEDY) for prompt in PROMPTS])
    return file


@pytest.mark.parametrize("concurrency", [1, 4])
def test_outputs_are_the_engines_and_every_request_is_measured(
    model: Path,
    requests: Path,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"MODEL": str(model), "THREADS": "1", "MAX_NUM_SEQUENCES": "2"}.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    found = measure(read_requests(requests), concurrency)
    assert found["outputs"] == [
        tiny_tokenizer().decode(reference_tokens(model, prompt, 6), skip_special_tokens=True)
        for prompt in PROMPTS
    ]
    assert found["num_failed"] == 0
    assert 0 < found["latency_mean_ms"] <= found["latency_p95_ms"]
    assert found["peak_memory_bytes"] > 1 << 20
    assert capsys.readouterr().out.count('"part"') == 4


def test_a_drawn_request_gets_a_seed_so_that_every_trial_draws_the_same(tmp_path: Path) -> None:
    drawn = SamplingParams(temperature=1.0)
    own = SamplingParams(temperature=1.0, seed=9)
    write_requests(
        tmp_path / "r.jsonl", [TunedRequest("a", GREEDY), TunedRequest("b", drawn), TunedRequest("c", own)]
    )
    assert [one.params.seed for one in read_requests(tmp_path / "r.jsonl")] == [None, 2, 9]


def test_settings_that_the_engine_refuses_fail_the_trial(model: Path, requests: Path) -> None:
    trials = Trials(model, requests, concurrency=2, limit_seconds=60)
    with pytest.raises(TrialFailedError, match="max_tokens_per_step"):
        trials.run({"HEADRACE_MAX_NUM_SEQUENCES": "8", "HEADRACE_MAX_TOKENS_PER_STEP": "4"})


@pytest.fixture
def fake_trials(requests: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    monkeypatch.setattr(trial_process, "TRIAL", "tests.fixtures.fake_trial")
    return Trials(Path("model"), requests, concurrency=8, limit_seconds=1)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"HEADRACE_BLOCK_SIZE": "64"}, "memory runs out"),
        ({"HEADRACE_ADMISSION": "hangs"}, "longer than 1 s"),
        ({"HEADRACE_ADMISSION": "refused"}, "^ConfigError: admission is wrong$"),
    ],
)
def test_the_end_of_a_trial_is_told(fake_trials: Trials, setting: dict[str, str], reason: str) -> None:
    with pytest.raises(TrialFailedError, match=reason):
        fake_trials.run(setting)


def test_a_trial_that_is_too_slow_ends_early(fake_trials: Trials) -> None:
    parts: list[int] = []

    def report(part: int, _: float) -> bool:
        parts.append(part)
        return part < 2

    with pytest.raises(TrialPrunedError):
        fake_trials.run({}, report)
    assert parts == [1, 2]
