"""Passes a Step's rows to the readouts of their Sequences: pooled vectors, scores, prompt logprobs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.choosing.sampler import token_logprobs
from worker.engine.sequences.readout import PooledReadout, PromptReadout, Readout, ScoredReadout

MAX_LOGITS = 1 << 24  # computed at once for scored rows: 64 MiB in float32


@dataclass(frozen=True, slots=True)
class RowSpan:
    """A run of consecutive rows of one Sequence, and the readout that takes them."""

    readout: Readout
    num_rows: int


def read_rows(
    hidden: Tensor, spans: Sequence[RowSpan], logits_of: Callable[[Tensor], Tensor], vocab_size: int
) -> None:
    """Push the rows of `hidden` [num_rows, hidden_size], in the order of `spans`, to their readouts.

    `logits_of` turns hidden states into logits [num_rows, vocab_size]; it is not called for pooled rows.
    """
    pooled: list[tuple[PooledReadout, Tensor]] = []
    scored: list[tuple[ScoredReadout, Tensor]] = []
    first = 0
    for span in spans:
        rows = hidden[first : first + span.num_rows]
        first += span.num_rows
        if isinstance(span.readout, PooledReadout):
            pooled.append((span.readout, rows))
        elif isinstance(span.readout, PromptReadout):
            _push_prompt(span.readout, rows, logits_of, max(1, MAX_LOGITS // vocab_size))
        else:
            scored.append((span.readout, rows))
    if pooled:
        _push_pooled(pooled)
    if scored:
        targets = [one for readout, rows in scored for one in readout.targets(len(rows))]
        found = iter(_score(torch.cat([rows for _, rows in scored]), targets, logits_of, vocab_size))
        for readout, rows in scored:
            readout.push(list(itertools.islice(found, len(rows))))


def _push_pooled(pooled: Sequence[tuple[PooledReadout, Tensor]]) -> None:
    converted = torch.cat([rows for _, rows in pooled]).double().cpu().numpy()
    first = 0
    for readout, rows in pooled:
        readout.push(converted[first : first + len(rows)])
        first += len(rows)


def _push_prompt(
    readout: PromptReadout, hidden: Tensor, logits_of: Callable[[Tensor], Tensor], at_once: int
) -> None:
    for rows in torch.split(hidden, at_once):
        token_ids = readout.next_token_ids[readout.next_row :][: len(rows)]
        counts = [readout.count] * len(rows)
        readout.push(token_logprobs(logits_of(rows), token_ids, counts, with_ranks=True))


def _score(
    hidden: Tensor,
    targets: Sequence[tuple[int, ...]],
    logits_of: Callable[[Tensor], Tensor],
    vocab_size: int,
) -> list[list[tuple[float, bool]]]:
    """Return, for each row, the logprob of each of its targets and whether it is the most likely token."""
    results: list[list[tuple[float, bool]]] = []
    at_once = max(1, MAX_LOGITS // vocab_size)
    for first in range(0, len(targets), at_once):
        part = targets[first : first + at_once]
        logits = logits_of(hidden[first : first + at_once]).float()
        device = logits.device
        rows = torch.tensor([row for row, tokens in enumerate(part) for _ in tokens], device=device)
        tokens = torch.tensor([token for tokens in part for token in tokens], device=device)
        is_best = (logits.argmax(dim=-1)[rows] == tokens).tolist()
        logprobs = logits.log_softmax(dim=-1)[rows, tokens].tolist()
        found = iter(zip(logprobs, is_best, strict=True))
        results += [[next(found) for _ in tokens] for tokens in part]
    return results
