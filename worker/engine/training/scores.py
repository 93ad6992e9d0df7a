"""Measures a draft on text: how well it predicts it, and how often its guess would be right."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from worker.engine.training.decoder import TrainableDecoder

CHUNK = 512  # tokens whose logits are in memory together


@dataclass(frozen=True, slots=True)
class DraftScores:
    """What a draft and its teacher make of the same text."""

    perplexity: float  # of the draft
    teacher_perplexity: float
    # Share of tokens where the draft's likeliest one is the teacher's, so that a greedy guess is kept.
    acceptance: float


@torch.no_grad()
def score(teacher: TrainableDecoder, draft: TrainableDecoder, rows: Tensor) -> DraftScores:
    """Score every token after the first of rows [num_rows, length]."""
    losses = [0.0, 0.0]
    num_equal = num_tokens = 0
    for row in rows:
        states = [(model, model.hidden(row[None, :-1])[0]) for model in (draft, teacher)]
        for start in range(0, len(row) - 1, CHUNK):
            part = slice(start, start + CHUNK)
            logits = [F.linear(one[part], model.head) for model, one in states]
            wanted = row[1:][part]
            for index, one in enumerate(logits):
                losses[index] += F.cross_entropy(one, wanted, reduction="sum").item()
            num_equal += int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
            num_tokens += len(wanted)
    own, teachers = (math.exp(loss / num_tokens) for loss in losses)
    return DraftScores(round(own, 4), round(teachers, 4), round(num_equal / num_tokens, 4))
