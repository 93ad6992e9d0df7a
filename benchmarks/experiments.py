"""Measures whether experiments find a planted regression, and how often they accuse the same model.

    python -m worker.embedded python -m benchmarks.experiments [--seeds N] [--first SEED]

The demo model in int8 says which word comes next at places of its held-out text: twice, drawn anew each time,
and once with wrong scales in one product of a layer. Then each seed draws as many of these requests as an
experiment says that it needs, and runs two experiments on them: with the broken model, and with the model
itself. The store is real: simulated workers save what the engine has generated, and the dispatcher's sweep
judges, decides and rolls back. The last line is JSON. The status is 1 unless every experiment with the broken
model was rolled back within the size that was said, and at most one in twenty with the same model.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from alembic import command
from alembic.config import Config
from safetensors.torch import load_file, save_file
from sqlalchemy import text
from tokenizers import Tokenizer

from worker.contract.models import Model, ServedModel, identify
from worker.contract.states import ExperimentStatus
from worker.engine.engine import Engine
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.writer import quantize_checkpoint
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.quality.expected import Expected, Match
from worker.quality.sequential import sample_size
from worker.settings import DEMO_MODEL, settings
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.experiments import experiment_views, experiments
from worker.store.experiments.experiment_views import ExperimentView
from worker.store.experiments.experiments import NewExperiment
from worker.store.requests import models
from worker.store.requests.requests import NewRequest, ShardRequest
from worker.store.shards import counting, shards
from worker.store.shards.shards import Progress
from worker.up import ROOT
from worker.values.model_files import weight_files
from worker.values.outcomes import Outcome
from worker.values.results import NewResult
from worker.values.sampling import SamplingParams

# Drawn, so that the same model is right at one time and wrong at another.
PARAMS = SamplingParams(max_tokens=1, temperature=0.7)
NUM_REQUESTS, CONTEXT = 960, 48  # tokens before each word
BEGIN = "<|bos|>"
RESOLUTION = 0.1
BROKEN, FACTOR = "model.layers.2.mlp.down_proj.weight_scale", 10.0
SHARD_SIZE = 64
LEASE = timedelta(seconds=600)


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answered to every request of the pool."""

    served: ServedModel
    completions: Sequence[Completion]

    def to_result(self, request: ShardRequest) -> NewResult:
        """Return the stored answer to a request, whose name is its number in the pool."""
        found = self.completions[int(request.custom_id or 0)]
        return NewResult(
            request_id=request.id,
            outcome=Outcome.COMPLETED,
            output=found.choices[0].text,
            finish_reason=found.choices[0].finish_reason,
            num_prompt_tokens=found.num_prompt_tokens,
            num_cached_tokens=found.num_cached_tokens,
            num_output_tokens=found.num_output_tokens,
            seconds=found.seconds,
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """The requests: the tokens before each word, and the word."""

    prompts: Sequence[tuple[int, ...]]
    expected: Sequence[Expected]

    def num_right(self, completions: Sequence[Completion]) -> int:
        """Return how many answers are right."""
        pairs = zip(self.expected, completions, strict=True)
        return sum(rule.is_met(one.choices[0].text) for rule, one in pairs)


def read_pool() -> Pool:
    """Return places of the held-out text at which a token is a word, always the same."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    ids = tokenizer.encode((DEMO_MODEL / "heldout.txt").read_text("utf-8"), add_special_tokens=False).ids
    words = [tokenizer.decode([token]).strip() for token in ids]
    places = [place for place in range(CONTEXT, len(ids)) if words[place].isalpha()]
    chosen = random.Random("pool").sample(places, NUM_REQUESTS)
    begin = tokenizer.encode(BEGIN, add_special_tokens=False).ids[0]
    prompts = [(begin, *ids[place - CONTEXT : place]) for place in chosen]
    return Pool(prompts, [Expected(Match.EXACT, words[place]) for place in chosen])


def plant(model: Path, out: Path) -> None:
    """Write a copy of an int8 checkpoint with wrong scales in one product."""
    out.mkdir()
    for file in model.iterdir():
        target = out / file.name
        if file in weight_files(model):
            tensors = load_file(file)
            tensors[BROKEN] = tensors[BROKEN] * FACTOR
            save_file(tensors, target, metadata={"format": "pt"})
        else:
            target.write_bytes(file.read_bytes())


def answer(engine: Engine, pool: Pool, first_seed: int) -> list[Completion]:
    """Return the engine's answers; each request is drawn with a seed of its own."""
    for number, prompt in enumerate(pool.prompts):
        engine.add(GenerationRequest(number, prompt, replace(PARAMS, seed=first_seed + number), job="pool"))
    found: list[Completion | None] = [None] * len(pool.prompts)
    while engine.has_unfinished:
        for completion in engine.step().completions:
            assert isinstance(completion, Completion)
            found[int(str(completion.id))] = completion
    return [one for one in found if one is not None]


def answers(pool: Pool) -> tuple[Answers, Answers, Answers]:
    """Run the engine: the model, the model once more with other seeds, and the broken one."""
    with TemporaryDirectory() as folder:
        good, broken = Path(folder, "demo-int8"), Path(folder, "demo-int8-broken")
        quantize_checkpoint(DEMO_MODEL, good, WeightFormat("int8"))
        plant(good, broken)
        served = [to_served(path) for path in (good, broken)]
        engine = Engine(EngineConfig(model=good, dtype="int8"))
        first, again = (answer(engine, pool, seed) for seed in (0, len(pool.prompts)))
        worse = answer(Engine(EngineConfig(model=broken, dtype="int8")), pool, 2 * len(pool.prompts))
    return Answers(served[0], first), Answers(served[0], again), Answers(served[1], worse)


def to_served(path: Path) -> ServedModel:
    """Return how a worker would name a checkpoint."""
    found = identify(path)
    return ServedModel(Model(found.name, found.fingerprint, found.tokenizer), "float32", "int8")


def run_experiment(store: Store, pool: Pool, chosen: Sequence[int], a: Answers, b: Answers) -> ExperimentView:
    """Run an experiment on some of the requests until it has ended; return it."""
    requests = [
        NewRequest(f"{number}", PARAMS.max_tokens, custom_id=f"{number}", expected=pool.expected[number])
        for number in chosen
    ]
    new = NewBatch(params=PARAMS, requests=requests, model=a.served.model)
    with store.transaction() as session:
        batch_id = batches.submit(session, new, shard_size=SHARD_SIZE)
        wanted = NewExperiment(b.served.model, 1.0, allowed_loss=0.0, resolution=RESOLUTION)
        experiments.start(session, batch_id, wanted, shard_size=SHARD_SIZE)
        experiment_id = experiments.id_of(batch_id)
        query = text("SELECT shadow_id FROM experiments WHERE id = :id")
        shadow_id = session.scalar(query, {"id": experiment_id})
    view = look(store, experiment_id)
    while view.status is ExperimentStatus.RUNNING:
        for its_id, answered in ((batch_id, a), (shadow_id, b)):
            run_shard(store, str(its_id), answered)
        with store.transaction() as session:
            experiments.advance(session, experiment_id)
        view = look(store, experiment_id)
    with store.transaction() as session:
        status = session.scalar(text("SELECT status FROM batches WHERE id = :id"), {"id": shadow_id})
        batches.cancel(session, batch_id)
    if view.status is ExperimentStatus.ROLLED_BACK and status != "cancelled":
        raise RuntimeError(f"{experiment_id} is rolled back, and its shadow is {status}")
    return view


def run_shard(store: Store, batch_id: str, answered: Answers) -> None:
    """Claim the next shard of a batch, if one is left, and save what the engine has answered."""
    query = text("SELECT min(id) FROM shards WHERE batch_id = :id AND state = 'ready'")
    with store.transaction() as session:
        shard_id = session.scalar(query, {"id": batch_id})
        if shard_id is None:
            return
        served = models.register(session, answered.served)
        claimed = shards.claim(session, shard_id, worker="bench", lease=LEASE, model=served)
        if claimed is None:
            raise RuntimeError(f"shard {shard_id} is not there to claim")
    results = [answered.to_result(one) for one in claimed.requests]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    counting.follow(store, batch_id)


def look(store: Store, experiment_id: str) -> ExperimentView:
    """Return an experiment as it stands."""
    with store.transaction() as session:
        view = experiment_views.get(session, experiment_id)
    if view is None:
        raise RuntimeError(f"there is no {experiment_id}")
    return view


def measure(store: Store, seeds: Sequence[int]) -> dict[str, Any]:
    """Run both experiments for each seed; return what became of them."""
    pool = read_pool()
    good, same, broken = answers(pool)
    shares = [pool.num_right(one.completions) / len(pool.prompts) for one in (good, same, broken)]
    print(f"right answers: {shares[0]:.1%}, {shares[1]:.1%} and, broken, {shares[2]:.1%}", flush=True)
    planned = sample_size(RESOLUTION, experiments.DISCORDANCE)
    found: list[int] = []
    rolled_back = {"broken": 0, "same": 0}
    for seed in seeds:
        chosen = random.Random(seed).sample(range(len(pool.prompts)), planned)
        for name, other in (("broken", broken), ("same", same)):
            view = run_experiment(store, pool, chosen, good, other)
            num_judged = view.report.comparison.num_scored
            if view.status is ExperimentStatus.ROLLED_BACK:
                rolled_back[name] += 1
                found += [num_judged] if name == "broken" else []
            print(f"seed {seed}, {name}: {view.status}, {view.verdict} after {num_judged}", flush=True)
    return {
        "seeds": len(seeds),
        "planned": planned,
        "loss": round(shares[0] - shares[2], 4),
        "found": rolled_back["broken"],
        "requests_median": statistics.median(found) if found else None,
        "requests_most": max(found, default=None),
        "false_alarms": rolled_back["same"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    options = parser.parse_args(arguments)
    command.upgrade(Config(toml_file=str(ROOT / "pyproject.toml")), "head")
    store = Store(settings().database_url, pool_size=2)
    try:
        found = measure(store, range(options.first, options.first + options.seeds))
    finally:
        store.close()
    print(json.dumps(found))
    return 0 if found["found"] == options.seeds and 20 * found["false_alarms"] <= options.seeds else 1


if __name__ == "__main__":
    sys.exit(main())
