"""Trains the demo model on the standard library and exports it in the Hugging Face layout.

`python models/demo/train.py --minutes 90` trains under `.cache/demo/`, or continues from the last checkpoint
there, then writes the weights, tokenizer, held-out text and metrics to `.cache/demo/base/`. `tune.py` goes on
from there. It needs only a CPU.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import BOS, EOS, Corpus, build, token_id, train_tokenizer
from export import export
from model import Llama, Shape
from tokenizers import Tokenizer
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
BATCH_TOKENS = 4_096
SHORT, LONG = 512, 1_024
WARMUP_STEPS = 30
DECAY_FROM = 0.55
LONG_FROM = 0.80


@dataclass(slots=True)
class Progress:
    """Progress that a checkpoint keeps beside the weights; `seconds` is training time, not wall time."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    cursor: int = 0


class Rows:
    """Epochs of documents, cut into shuffled rows of one length that start with BOS."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer) -> None:
        self.corpus, self.tokenizer = corpus, tokenizer
        self.bos, self.eos = token_id(tokenizer, BOS), token_id(tokenizer, EOS)
        self.epoch, self.cursor, self.length = 0, 0, 0
        self.rows = torch.empty(0)

    def open(self, epoch: int, cursor: int, length: int) -> None:
        """Cut an epoch into rows of `length`; the long rows of the last phase come from the refined mix."""
        documents = self.corpus.epoch(epoch, refined=length == LONG)
        encodings = self.tokenizer.encode_batch_fast(documents)
        stream = torch.tensor([i for encoding in encodings for i in (*encoding.ids, self.eos)])
        # A row's first token was the last target of the row before, so BOS may replace it. Rows are shuffled
        # because one long module would otherwise fill many batches in a row.
        rows = stream.unfold(0, length + 1, length).clone()
        rows[:, 0] = self.bos
        self.rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))]
        self.epoch, self.cursor, self.length = epoch, cursor, length

    def take(self, length: int) -> Tensor:
        """Return one batch of ids [rows, length + 1]."""
        num_rows = BATCH_TOKENS // length
        if length != self.length or self.cursor + num_rows > len(self.rows):
            self.open(self.epoch + 1, 0, length)
        self.cursor += num_rows
        return self.rows[self.cursor - num_rows : self.cursor]


class Threads:
    """Chooses between all threads and one by speed, since other load stalls every parallel loop."""

    def __init__(self, most: int) -> None:
        self.seconds = dict.fromkeys({1, most}, 0.0)
        self.now = most

    def before(self, step: int) -> None:
        """Set the number of threads for this step; one step in 24 tries the currently slower number."""
        best = min(self.seconds, key=lambda count: self.seconds[count])
        self.now = best if step % 24 else max(self.seconds, key=lambda count: self.seconds[count])
        torch.set_num_threads(self.now)

    def after(self, seconds: float) -> None:
        """Record how long a step took with the number of threads in use."""
        known = self.seconds[self.now]
        self.seconds[self.now] = seconds if known == 0.0 else 0.5 * known + 0.5 * seconds


def optimizers(model: Llama, lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [muon, adamw]


def learning_rate(done: float, step: int) -> float:
    """Return the learning-rate multiplier for a share of the time budget: warm up, hold, decay to zero."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return warm * min(1.0, max(0.0, (1.0 - done) / (1.0 - DECAY_FROM)))


def train(args: argparse.Namespace, corpus: Corpus, tokenizer: Tokenizer) -> tuple[Llama, Progress]:
    """Train until the time budget is spent, with a save every few minutes; return model and progress."""
    torch.manual_seed(0)
    shape = Shape(vocab_size=args.vocab)
    model, state, saved = Llama(shape), Progress(), args.cache / "checkpoint.pt"
    steppers = optimizers(model, args.lr)
    if saved.exists():
        kept = torch.load(saved, weights_only=True)
        model.load_state_dict(kept["model"])
        for stepper, kept_state in zip(steppers, kept["optimizers"], strict=True):
            stepper.load_state_dict(kept_state)
        state = Progress(**kept["progress"])
    budget, last_save = args.minutes * 60, state.seconds
    rows = Rows(corpus, tokenizer)
    rows.open(state.epoch, state.cursor, LONG if state.seconds / budget >= LONG_FROM else SHORT)
    smooth: float | None = None
    threads = Threads(args.threads)
    while (done := state.seconds / budget) < 1.0:
        started = time.perf_counter()
        threads.before(state.step)
        length = LONG if done >= LONG_FROM else SHORT
        for stepper in steppers:
            for group in stepper.param_groups:
                group["lr"] = args.lr * learning_rate(done, state.step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(rows.take(length))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        state.step, state.tokens = state.step + 1, state.tokens + BATCH_TOKENS
        state.epoch, state.cursor = rows.epoch, rows.cursor
        taken = time.perf_counter() - started
        threads.after(taken)
        state.seconds += taken
        if state.step % 20 == 0:
            rate = BATCH_TOKENS / min(threads.seconds.values())
            print(
                f"step {state.step} {done:.3f} loss {smooth:.3f} {state.tokens / 1e6:.2f}M {rate:.0f}/s",
                flush=True,
            )
        if state.seconds - last_save > args.save_seconds:
            last_save = state.seconds
            save(saved, model, steppers, state)
    save(saved, model, steppers, state)
    return model, state


def save(path: Path, model: Llama, steppers: list[torch.optim.Optimizer], state: Progress) -> None:
    """Write a checkpoint atomically."""
    kept: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizers": [stepper.state_dict() for stepper in steppers],
        "progress": asdict(state),
    }
    torch.save(kept, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def documents(args: argparse.Namespace) -> tuple[Corpus, Tokenizer]:
    """Return the corpus and its tokenizer; the saved tokenizer gives a resumed run the same ids."""
    corpus, path = build(), args.cache / "tokenizer.json"
    if not path.exists():
        train_tokenizer(corpus, args.vocab).save(str(path))
    return corpus, Tokenizer.from_file(str(path))


def main() -> None:
    """Parse the command line, train, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=90.0, help="training time, decay included")
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=6144)
    parser.add_argument("--save-seconds", type=float, default=180.0)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "demo")
    parser.add_argument("--export-only", action="store_true", help="export the last checkpoint as it is")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "demo" / "base")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    corpus, tokenizer = documents(args)
    if args.export_only:
        kept = torch.load(args.cache / "checkpoint.pt", weights_only=True)
        model, state = Llama(Shape(vocab_size=args.vocab)), Progress(**kept["progress"])
        model.load_state_dict(kept["model"])
    else:
        model, state = train(args, corpus, tokenizer)
    run = {"steps": state.step, "tokens_seen": state.tokens, "minutes": round(state.seconds / 60, 1)}
    print(json.dumps(export(args.out, model, tokenizer, corpus, run), indent=1))


if __name__ == "__main__":
    main()
