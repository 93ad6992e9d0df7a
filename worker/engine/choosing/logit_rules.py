"""Changes a Step's logits before tokens are chosen: penalties, biases, grammars, minimum length."""

import math
from collections.abc import Sequence as Sequences
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import keep_allowed
from worker.engine.sequences.sequence import Sequence

# A row of the logits with its Sequence, and the guesses between that and the row's token.
_Row = tuple[int, Sequence, tuple[int, ...]]


def apply_rules(
    logits: Tensor, sequences: Sequences[Sequence], ahead: Sequences[tuple[int, ...]] = ()
) -> Tensor:
    """Return `logits` [num_outputs, vocab_size] with each row's rules applied, as float32 if any row has one.

    `ahead` holds the guesses between a row's Sequence and its next token; empty: there are none.

    Order: the repetition penalty (tokens of prompt and output), frequency and presence penalties (tokens of
    the output), the bias, the mask of tokens that the grammar forbids, the mask of end tokens before
    `min_tokens` and in thoughts that an answer must follow. Where thoughts must begin or end, only their mark
    is left. A row's result depends only on its own tokens. Sources: Keskar et al., arXiv:1909.05858
    (repetition); OpenAI's API reference (frequency and presence).
    """
    rows = [row for row, sequence in enumerate(sequences) if sequence.has_logit_rules]
    if not rows:
        return logits
    logits = logits.float()
    if not logits.is_cuda:
        _apply(logits, [(row, sequences[row], ahead[row] if ahead else ()) for row in rows])
        return logits
    own = logits[rows].cpu()
    _apply(own, [(place, sequences[row], ahead[row] if ahead else ()) for place, row in enumerate(rows)])
    logits[rows] = own.to(logits.device)
    return logits


def _apply(logits: Tensor, rows: list[_Row]) -> None:
    matched: list[_Row] = []
    ending: list[_Row] = []
    for row, sequence, guesses in rows:
        params, thoughts = sequence.params, sequence.thoughts
        if thoughts is not None and thoughts.wanted is not None:
            logits[row].fill_(-math.inf)
            logits[row, thoughts.wanted] = 0
            continue
        _penalise(logits, row, sequence, guesses)
        if sequence.matcher is not None and thoughts is None:
            matched.append((row, sequence, guesses))
        is_before_its_answer = thoughts is not None and sequence.matcher is not None
        if sequence.num_output_tokens + len(guesses) < params.min_tokens or is_before_its_answer:
            ending.append((row, sequence, guesses))
    if matched:
        _keep_allowed(logits, matched)
    for row, sequence, _ in ending:
        _hold_back_ends(logits[row], sequence)


def _penalise(logits: Tensor, row: int, sequence: Sequence, guesses: tuple[int, ...]) -> None:
    """Apply the penalties and the bias to a row."""
    params = sequence.params
    if params.repetition_penalty != 1:
        seen = torch.from_numpy(np.unique([*sequence.token_ids, *guesses]))
        values = logits[row, seen]
        penalty = params.repetition_penalty
        logits[row, seen] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        output = [*sequence.token_ids[sequence.num_prompt_tokens :], *guesses]
        tokens, counts = np.unique(np.array(output, dtype=np.int64), return_counts=True)
        amounts = params.frequency_penalty * counts + params.presence_penalty
        logits[row, torch.from_numpy(tokens)] -= torch.from_numpy(amounts).float()
    if params.logit_bias:
        biased, biases = zip(*params.logit_bias, strict=True)
        logits[row].index_add_(0, torch.tensor(biased), torch.tensor(biases, dtype=torch.float32))


def _keep_allowed(logits: Tensor, matched: list[_Row]) -> None:
    """Mask what each row's grammar forbids."""
    bits: list[bytes] = []
    for matcher, own in groupby(matched, key=lambda one: one[1].matcher):
        if matcher is not None:
            bits += matcher.allowed([guesses for _, _, guesses in own])
    allowed = np.frombuffer(b"".join(bits), dtype=np.uint32).reshape(len(bits), -1)
    keep_allowed(logits, [row for row, _, _ in matched], allowed)


def _hold_back_ends(logits: Tensor, sequence: Sequence) -> None:
    # A checkpoint may name an end token that its vocabulary does not reach.
    ends = torch.tensor([token for token in sequence.stop_token_ids if token < len(logits)]).long()
    held_back = logits[ends]
    logits[ends] = -math.inf
    if sequence.matcher is not None and sequence.thoughts is None and logits.max() == -math.inf:
        logits[ends] = held_back
