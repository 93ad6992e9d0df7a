"""Teaches the trained model to answer in form: chats, JSON and calls that end by themselves.

`python models/demo/tune.py` starts from the weights in `.cache/demo/base/`, or continues from the last
checkpoint in `.cache/demo/`, and writes the finished model beside this file. It needs only a CPU.
"""

import argparse
import json
import random
import time
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from corpus import Corpus, build
from dialogue.mix import BOS, EOS, Material, conversation
from export import export
from heldout import perplexity
from model import Llama, Shape, mean_loss
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from train import ROOT

HERE = Path(__file__).resolve().parent
LENGTH = 384  # of a row, in tokens
NUM_ROWS = 2  # of conversations in a step, and as many of the corpus
DRIFT_WEIGHT = 10.0
NUM_TESTED = 48  # conversations that are never trained on; they have the numbers below 0
WARMUP_STEPS = 20
DECAY_FROM = 0.15


@dataclass(slots=True)
class Progress:
    """Progress that a checkpoint keeps beside the weights."""

    step: int = 0
    seconds: float = 0.0
    conversation: int = 0


@dataclass(frozen=True, slots=True)
class Lessons:
    """Conversations as rows of ids, and which of their tokens are learned."""

    tokenizer: Tokenizer
    material: Material

    def encode(self, number: int) -> tuple[list[int], list[bool]]:
        """Return the ids of one conversation, and which are learned."""
        ids: list[int] = []
        learned: list[bool] = []
        for part in conversation(number, self.material).parts():
            # In parts, as a service sees them: the prompt is encoded, the answer is generated.
            some = self.tokenizer.encode(part.text, add_special_tokens=False).ids
            ids += some
            learned += [part.learned_from is not None and i >= part.learned_from for i in range(len(some))]
        return ids, learned

    def row(self, first: int, length: int) -> tuple[Tensor, Tensor, int]:
        """Return ids and marks [length + 1] of conversations from `first` on, and the first number left.

        A row begins with a conversation; the last one may be cut off.
        """
        ids: list[int] = []
        learned: list[bool] = []
        for number in count(first):
            some_ids, some_learned = self.encode(number)
            ids, learned = ids + some_ids, learned + some_learned
            if len(ids) > length:
                return torch.tensor(ids[: length + 1]), torch.tensor(learned[: length + 1]), number + 1
        raise AssertionError

    def corpus_row(self, corpus: Corpus, number: int, length: int) -> Tensor:
        """Return ids [length] from documents of the corpus, always the same ones for a number."""
        rng, text = random.Random(f"corpus {number}"), BOS  # noqa: S311
        while True:
            document = rng.choice(
                rng.choice((corpus.files, corpus.snippets, corpus.prose, *corpus.tests[:2]))
            )
            start = rng.randrange(max(1, len(document) - 8 * length))
            text += document[start : start + 8 * length]
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) >= length:
                return torch.tensor(ids[:length])
            text += EOS

    def loss(self, model: Llama) -> float:
        """Return the mean loss of learned tokens in conversations that are never trained on."""
        total, num_tokens = 0.0, 0
        with torch.inference_mode():
            for number in range(-NUM_TESTED, 0):
                ids, learned = (torch.tensor(one)[None] for one in self.encode(number))
                states, chosen = model.hidden(ids[:, :-1])[learned[:, 1:]], ids[:, 1:][learned[:, 1:]]
                total += mean_loss(states, model.embed_tokens.weight, chosen).item() * len(chosen)
                num_tokens += len(chosen)
        return total / num_tokens


@dataclass(slots=True)
class Tuning:
    """A run of training: it learns answers, and on the corpus it stays near what the base says."""

    args: argparse.Namespace
    corpus: Corpus
    model: Llama
    base: Llama
    lessons: Lessons
    stepper: torch.optim.Optimizer
    at: Progress

    def learning_rate(self) -> float:
        """Return the learning rate of this step: warm up, hold, decay to zero."""
        done, warm = self.at.step / self.args.steps, min(1.0, (self.at.step + 1) / WARMUP_STEPS)
        return float(self.args.lr * warm * min(1.0, (1.0 - done) / (1.0 - DECAY_FROM)))

    def step(self) -> tuple[float, float]:
        """Take one step; return the divergence from the base on the corpus, and the loss of the lessons."""
        rows, marks = [], []
        for _ in range(NUM_ROWS):
            row, learned, self.at.conversation = self.lessons.row(self.at.conversation, LENGTH)
            rows.append(row)
            marks.append(learned)
        spoken, told = torch.stack(rows), torch.stack(marks)[:, 1:]
        known = torch.stack(
            [
                self.lessons.corpus_row(self.corpus, self.at.step * NUM_ROWS + i, LENGTH)
                for i in range(NUM_ROWS)
            ]
        )
        for group in self.stepper.param_groups:
            group["lr"] = self.learning_rate()
        states = self.model.hidden(torch.cat([known, spoken[:, :-1]]))
        weight = self.model.embed_tokens.weight
        with torch.no_grad():
            wanted = self.base(known).log_softmax(-1)
        found = F.linear(states[:NUM_ROWS], weight).log_softmax(-1)
        drift = F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)
        loss = mean_loss(states[NUM_ROWS:][told], weight, spoken[:, 1:][told])
        (DRIFT_WEIGHT * drift + loss).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.stepper.step()
        self.stepper.zero_grad()
        self.at.step += 1
        return drift.item(), loss.item()

    def run(self, saved: Path) -> None:
        """Train to the last step; print the losses, and save and test every few minutes."""
        last_save, recent = self.at.seconds, []
        while self.at.step < self.args.steps:
            started = time.perf_counter()
            recent.append(self.step())
            self.at.seconds += time.perf_counter() - started
            if self.at.step % 10 == 0:
                drift, told = (sum(column) / len(recent) for column in zip(*recent, strict=True))
                recent.clear()
                minutes = self.at.seconds / 60
                left = minutes / self.at.step * (self.args.steps - self.at.step)
                print(
                    f"step {self.at.step}/{self.args.steps} drift {drift:.3f} lessons {told:.3f} "
                    f"{minutes:.1f} min, {left:.1f} left",
                    flush=True,
                )
            if self.at.seconds - last_save > self.args.save_seconds:
                last_save = self.at.seconds
                self.save(saved)
                self.test()

    def test(self) -> float:
        """Print and return what held-out text and conversations say."""
        told = self.lessons.loss(self.model)
        scored = perplexity(self.model, self.lessons.tokenizer, self.corpus.heldout, max_tokens=4096)
        print(f"held out: perplexity {scored['perplexity']}, lessons {told:.4f}", flush=True)
        return told

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        kept: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.stepper.state_dict(),
            "progress": asdict(self.at),
        }
        torch.save(kept, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        kept = torch.load(path, weights_only=True)
        self.model.load_state_dict(kept["model"])
        self.stepper.load_state_dict(kept["optimizer"])
        self.at = Progress(**kept["progress"])


def start(args: argparse.Namespace, corpus: Corpus) -> Tuning:
    """Return a run that begins at the base's weights."""
    tokenizer = Tokenizer.from_file(str(args.base / "tokenizer.json"))
    model = Llama(Shape(vocab_size=tokenizer.get_vocab_size()))
    weights = load_file(args.base / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in weights.items()})
    lessons = Lessons(tokenizer, Material.of(corpus.snippets, corpus.prose))
    stepper = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    return Tuning(args, corpus, model, deepcopy(model), lessons, stepper, Progress())


def main() -> None:
    """Parse the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=760)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-seconds", type=float, default=180.0)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "demo")
    parser.add_argument("--base", type=Path, default=ROOT / ".cache" / "demo" / "base")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    corpus, saved = build(), args.cache / "tuning.pt"
    tuning = start(args, corpus)
    if saved.exists():
        tuning.load(saved)
    tuning.test()
    tuning.run(saved)
    tuning.save(saved)
    base = json.loads((args.base / "metrics.json").read_text(encoding="utf-8"))
    run = {key: base[key] for key in ("steps", "tokens_seen", "minutes")}
    run["tuning"] = {
        "steps": tuning.at.step,
        "conversations": tuning.at.conversation,
        "minutes": round(tuning.at.seconds / 60, 1),
        "lessons_nll_per_token": round(tuning.test(), 4),
        "heldout_perplexity_before": base["heldout"]["perplexity"],
    }
    exported = export(args.out, tuning.model, tuning.lessons.tokenizer, corpus, run)
    print(json.dumps(exported, indent=1))


if __name__ == "__main__":
    main()
