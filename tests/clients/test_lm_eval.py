"""lm-eval's tasks from local files: through the service they have the numbers of its own `hf` backend."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from tests.clients.conftest import MODEL

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "models" / "demo"
EXAMPLE = ROOT / "docs" / "examples" / "lm_eval_batch.py"
TASKS = ("tiny_choice", "tiny_perplexity", "tiny_generation")
MAX_LENGTH = 1024
NUMBERS = ("acc,none", "acc_norm,none", "word_perplexity,none", "byte_perplexity,none", "exact_match,none")


def evaluated(kind: str, /, **options: Any) -> dict[str, Any]:
    """Return the numbers of every task, and what the model answered to every document."""
    found = simple_evaluate(
        model=kind,
        model_args=options,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(Path(__file__).with_name("tasks")), include_defaults=False),
        bootstrap_iters=0,
        batch_size=options.pop("batch_size", 1),
    )
    assert found is not None
    numbers = {
        f"{task} {name}": found["results"][task][name]
        for task in TASKS
        for name in NUMBERS
        if name in found["results"][task]
    }
    answers = {
        task: [sample["resps"] for sample in sorted(found["samples"][task], key=lambda one: one["doc_id"])]
        for task in TASKS
    }
    return {"numbers": numbers, "answers": answers}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets"))
    found = evaluated(
        "hf",
        pretrained=str(CHECKPOINT),
        dtype="float32",
        device="cpu",
        add_bos_token=False,
        # Windows of long texts are as long as those of `local-completions`, which leaves room for a token.
        max_length=MAX_LENGTH - 2,
    )
    assert len(found["numbers"]) == 5
    return found


def check(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """Log-likelihoods may differ in their last digits, texts and greedy choices may not."""
    assert found["numbers"] == pytest.approx(reference["numbers"], rel=1e-4)
    for task in ("tiny_choice", "tiny_perplexity"):
        for ours, theirs in zip(found["answers"][task], reference["answers"][task], strict=True):
            for (one,), (other,) in zip(ours, theirs, strict=True):
                assert one == pytest.approx(other, abs=2e-3, rel=1e-4)
    assert found["answers"]["tiny_generation"] == reference["answers"]["tiny_generation"]


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer_backend": "huggingface", "tokenizer": str(CHECKPOINT), "batch_size": 4},
        # The service's own tokenizer. It takes the token 0, which begins a text here, for none.
        {"custom_prefix_token_id": 0, "num_concurrent": 4},
    ],
)
def test_local_completions(openai_url: str, reference: dict[str, Any], options: dict[str, Any]) -> None:
    found = evaluated(
        "local-completions",
        model=MODEL,
        base_url=f"{openai_url}/completions",
        max_length=MAX_LENGTH,
        **options,
    )
    check(found, reference)


def test_through_batches(url: str, reference: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", url)
    spec = importlib.util.spec_from_file_location("lm_eval_batch", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    found = evaluated(
        "headrace-batch", model=MODEL, custom_prefix_token_id=0, max_length=MAX_LENGTH, batch_size=1
    )
    check(found, reference)
