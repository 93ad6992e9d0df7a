"""Cuts text into rows of tokens: to learn from, and held out to test on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from worker.engine.models.checkpoint import read_eos_token_ids, read_json

HELD_OUT = 0.02  # share of the text, its end
MOST_TESTED = 32  # rows


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Token ids [num_tokens] to learn from, and others that are only for tests."""

    learned: Tensor
    held_out: Tensor
    begin: int | None  # the token that each row starts with

    def rows(self, seed: int, step: int, num_rows: int, length: int) -> Tensor:
        """Return the rows of a step, [num_rows, length]: the same ones for the same seed and step."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.learned) - length + 1, (num_rows,), generator=generator)
        return self._begun(torch.stack([self.learned[start : start + length] for start in starts.tolist()]))

    def tests(self, length: int) -> Tensor:
        """Return the rows to test on, [at most MOST_TESTED, length]."""
        return self._begun(self.held_out.unfold(0, length, length)[:MOST_TESTED].clone())

    def _begun(self, rows: Tensor) -> Tensor:
        if self.begin is not None:
            rows[:, 0] = self.begin
        return rows


def read_text(files: Sequence[Path], model: Path, length: int) -> TrainingText:
    """Tokenize files of UTF-8 text for a checkpoint, each ended by its end token.

    Each line of a file whose name ends in `.jsonl` is a text of its own: JSON with a `text`.

    Raises ValueError if there are too few tokens for a row of `length` on either side.
    """
    tokenizer = Tokenizer.from_buffer((model / "tokenizer.json").read_bytes())
    ends = sorted(read_eos_token_ids(model))[:1]
    texts = [text for file in files for text in _texts(file)]
    ids = torch.tensor(
        [
            token
            for found in tokenizer.encode_batch(texts, add_special_tokens=False)
            for token in (*found.ids, *ends)
        ],
        dtype=torch.int64,
    )
    num_held_out = max(length, round(HELD_OUT * len(ids)))
    if len(ids) < num_held_out + length:
        raise ValueError(f"the text has {len(ids)} tokens; at least {num_held_out + length} are needed")
    begin = read_json(model / "config.json").get("bos_token_id")
    return TrainingText(ids[:-num_held_out], ids[-num_held_out:], begin if isinstance(begin, int) else None)


def _texts(file: Path) -> list[str]:
    content = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        return [content]
    texts = []
    # Not splitlines: JSON may hold other line breaks.
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise ValueError(f"{file}, line {number}: no object with a `text`")
            texts.append(record["text"])
    return texts
