"""One file for two models: a worker of each runs its lines, and answers as it does in a batch of its own."""

from pathlib import Path

import pytest

from tests.fixtures.deployment import deployment
from tests.fixtures.mixed import answers_of, in_turns, submit
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.contract.models import identify

PROMPTS = [f"pack my box with {i} dozen" for i in range(40)]
FIELDS = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
NAMES = ("small", "large")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lines_of_one_file_run_on_a_worker_of_each_model(tmp_path: Path) -> None:
    small, large = (write_tiny_llama(tmp_path / name, seed=seed) for seed, name in enumerate(NAMES))
    options = {
        "HEADRACE_MODELS": f"{small},{large}",
        "HEADRACE_DATA_DIR": str(tmp_path / "data"),
        "HEADRACE_SHARD_SIZE": "4",
        "HEADRACE_SAVE_SECONDS": "0.1",
    }
    with deployment(tmp_path, small, processes=("web", "gpu", "dispatcher", "files"), **options) as running:
        mixed = submit(running, in_turns(PROMPTS, NAMES, **FIELDS))
        shown = running.batch(mixed)["models"]
        assert {part["name"]: part["revision"] for part in shown} == {
            path.name: identify(path).fingerprint for path in (small, large)
        }
        # Its part for the model that nobody serves waits, and says so.
        label = identify(large).label

        def parts() -> dict[str, dict[str, object]]:
            return {part["name"]: part for part in running.batch(mixed)["models"]}

        running.wait_for_progress(mixed, 0.5)
        assert parts()["large"]["waiting"]["message"] == f"no worker serves {label}"  # type: ignore[index]
        running.start_other(large)
        answers = answers_of(running, mixed)
        assert len(answers) == 2 * len(PROMPTS)
        for place, name in enumerate(NAMES):
            alone = running.submit(prompts=PROMPTS, model=name, **FIELDS)
            running.wait_for(alone)
            own = {one["index"]: one["output"] for one in running.results(alone)}
            for i in range(len(PROMPTS)):
                answer = answers[str(2 * i + place)]
                assert (answer["model"], answer["choices"][0]["text"]) == (name, own[i])
        done = running.batch(mixed)
        assert {part["name"]: part["counts"]["completed"] for part in done["models"]} == dict.fromkeys(
            NAMES, 40
        )
        assert sum(part["output_tokens"] for part in done["models"]) == 2 * 40 * 24
