"""What int8 costs on the demo model, by models/demo/heldout.py's definition, on the start of its text."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels.paged_attention import plan_attention
from models.demo import heldout
from tests.fixtures.generation import make_engine
from worker.engine.models.step_input import StepInput

DEMO = Path(heldout.__file__).parent
WINDOW = 512


def perplexity(dtype: str) -> float:
    engine = make_engine(DEMO, dtype=dtype, block_size=16, num_blocks=WINDOW // 16, max_model_len=WINDOW)
    runner = engine._runner

    def logits_of(ids: Tensor) -> Tensor:
        count = ids.shape[1]
        places = torch.arange(count)
        plan = plan_attention(
            [count],
            places.numpy(),
            torch.arange(WINDOW // 16).unsqueeze(0).numpy(),
            block_size=16,
            group=runner._placement._group,
            head_dim=runner._placement._head_dim,
        )
        step = StepInput(ids[0], places, places, plan, None)
        return runner._model.logits(runner._model.forward(step, runner._kv_cache)).unsqueeze(0)

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    text = (DEMO / "heldout.txt").read_text(encoding="utf-8")
    scores = heldout.perplexity(logits_of, tokenizer, text, window=WINDOW, max_tokens=4096)
    return float(scores["perplexity"])


@pytest.mark.usefixtures("only_on_cpu")
def test_int8_is_within_half_a_percent_of_bf16() -> None:
    assert perplexity("int8") < 1.005 * perplexity("bf16")
