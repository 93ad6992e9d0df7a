"""Changes a Step's logits before tokens are chosen: penalties, biases, grammars, minimum length."""

import math
from collections.abc import Sequence as Sequences

import numpy as np
import torch
from torch import Tensor

from worker.engine.sequences.sequence import Sequence


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
    for row in rows:
        own = logits[row].cpu()
        _apply(own, sequences[row], ahead[row] if ahead else ())
        if logits.is_cuda:
            logits[row] = own
    return logits


def _apply(logits: Tensor, sequence: Sequence, guesses: tuple[int, ...]) -> None:
    params, thoughts = sequence.params, sequence.thoughts
    token_ids = [*sequence.token_ids, *guesses] if guesses else sequence.token_ids
    if thoughts is not None and thoughts.wanted is not None:
        logits.fill_(-math.inf)
        logits[thoughts.wanted] = 0
        return
    if params.repetition_penalty != 1:
        seen = torch.from_numpy(np.unique(token_ids))
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    output = token_ids[sequence.num_prompt_tokens :]
    if output and (params.frequency_penalty or params.presence_penalty):
        tokens, counts = np.unique(output, return_counts=True)
        amounts = params.frequency_penalty * counts + params.presence_penalty
        logits[torch.from_numpy(tokens)] -= torch.from_numpy(amounts).float()
    if params.logit_bias:
        biased, biases = zip(*params.logit_bias, strict=True)
        logits.index_add_(0, torch.tensor(biased), torch.tensor(biases, dtype=torch.float32))
    matcher = sequence.matcher if thoughts is None else None
    if matcher is not None:
        logits.masked_fill_(torch.from_numpy(matcher.forbidden(len(logits), guesses)), -math.inf)
    is_before_its_answer = thoughts is not None and sequence.matcher is not None
    if len(output) < params.min_tokens or is_before_its_answer:
        # A checkpoint may name an end token that its vocabulary does not reach.
        ends = torch.tensor([token for token in sequence.stop_token_ids if token < len(logits)]).long()
        held_back = logits[ends]
        logits[ends] = -math.inf
        if matcher is not None and logits.max() == -math.inf:
            logits[ends] = held_back
