"""The demo model's heads and its draft, as committed, guess as well as they say, and change no output."""

import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.fixtures.generation import greedy, make_engine, run
from tests.fixtures.speculation import FixedTimes, ignore_time
from worker.contract.models import identify
from worker.engine.engine import Engine
from worker.engine.medusa.head_training import acceptance
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.requests.generation import GenerationRequest
from worker.engine.running.draft_model import DraftModel
from worker.engine.running.medusa_guesses import MedusaGuesses
from worker.engine.training.decoder import TrainableDecoder
from worker.engine.training.scores import score
from worker.values.model_files import HEADS_FILE
from worker.values.sampling import SamplingParams

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
DRAFT = DEMO.with_name("demo-draft")
SAMPLED = SamplingParams(temperature=0.7, top_p=0.95, seed=3, max_tokens=40)
NUM_PROMPTS, PROMPT_TOKENS = 12, 48
NUM_ROWS, LENGTH = 64, 256


def heldout() -> list[int]:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    text = (DEMO / "heldout.txt").read_text(encoding="utf-8")
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.fixture(scope="module")
def rows() -> Tensor:
    begin = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))["bos_token_id"]
    found = torch.tensor(heldout()[: NUM_ROWS * (LENGTH - 1)]).view(NUM_ROWS, LENGTH - 1)
    return torch.cat((torch.full((NUM_ROWS, 1), begin), found), dim=1)


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    ids = heldout()
    starts = range(0, len(ids) - PROMPT_TOKENS, len(ids) // NUM_PROMPTS)
    prompts = [tuple(ids[start : start + PROMPT_TOKENS]) for start in starts][:NUM_PROMPTS]
    return [
        GenerationRequest(NUM_PROMPTS * kind + index, prompt, params)
        for kind, params in enumerate((greedy(40), SAMPLED))
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def expected(requests: list[GenerationRequest]) -> list[tuple[int, ...]]:
    return [one.token_ids for one in run(make_engine(DEMO, dtype="int8"), requests)]


def guessing(kind: type[MedusaGuesses | DraftModel]) -> Engine:
    """An engine that verifies all that one proposer guesses, and nothing else."""
    engine = make_engine(DEMO, dtype="int8", speculates=True, draft_model=DRAFT)
    speculation = engine._speculation
    speculation.use([one for one in speculation.proposers if isinstance(one, kind)])
    speculation.times = FixedTimes(10.0)  # type: ignore[assignment]
    ignore_time(engine)
    return engine


def test_outputs_with_heads_are_those_without(
    requests: list[GenerationRequest], expected: list[tuple[int, ...]]
) -> None:
    engine = guessing(MedusaGuesses)
    assert [one.token_ids for one in run(engine, requests)] == expected
    assert engine.stats.medusa_right_tokens > 0.04 * engine.stats.medusa_guessed_tokens > 100
    engine = guessing(MedusaGuesses)
    run(engine, requests[:NUM_PROMPTS])  # greedy: what is drawn is right less often, by chance of the draws
    assert engine._runner.medusa is not None
    shares = engine._runner.medusa.shares
    assert shares[0] > 0.25, "the likeliest token of the first head"


def test_outputs_with_the_draft_are_those_without(
    requests: list[GenerationRequest], expected: list[tuple[int, ...]]
) -> None:
    engine = guessing(DraftModel)
    assert [one.token_ids for one in run(engine, requests)] == expected
    assert engine.stats.draft_right_tokens > 0.1 * engine.stats.draft_guessed_tokens
    assert 0.06 * engine.stats.draft_guessed_tokens > 100


def test_heads_are_as_good_as_their_readme_says(rows: Tensor) -> None:
    model = TrainableDecoder.load(DEMO)
    heads = MedusaHeads.load(DEMO, model.config.hidden_size, torch.float32)
    assert heads is not None
    row = re.search(r"\| Heads right[^|]*\| ([\d., ]+) ", (DEMO / "README.md").read_text(encoding="utf-8"))
    assert row is not None
    stated = [float(number) for number in row[1].split(", ")]
    assert acceptance(model, heads, rows) == pytest.approx(stated, abs=0.01)


def test_the_draft_is_as_good_as_its_readme_says(rows: Tensor) -> None:
    readme = (DRAFT / "README.md").read_text(encoding="utf-8")
    found = score(TrainableDecoder.load(DEMO), TrainableDecoder.load(DRAFT), rows)
    for name, value, tolerance in (
        ("acceptance", found.acceptance, 0.01),
        ("perplexity", found.perplexity, 0.1),
    ):
        stated = re.search(rf"\| Held-out {name} \| ([\d.]+) ", readme)
        assert stated is not None, name
        assert value == pytest.approx(float(stated[1]), abs=tolerance)


def test_the_files_are_small_and_the_heads_are_no_part_of_the_model(tmp_path: Path) -> None:
    assert (DEMO / HEADS_FILE).stat().st_size < 1_500_000
    assert sum(file.stat().st_size for file in DRAFT.iterdir()) < 8_000_000
    for file in DEMO.iterdir():
        if file.name != HEADS_FILE:
            (tmp_path / file.name).symlink_to(file)
    assert identify(tmp_path).fingerprint == identify(DEMO).fingerprint
