"""Logprobs of prompt tokens: which rows of a Step they are read from, and reading them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from worker.engine.sampler import token_logprobs
from worker.engine.sequence import TokenLogprobs
from worker.engine.step import ScheduledSequence

ROWS_AT_ONCE = 64  # a row of logits has the size of the vocabulary


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of a Step, one behind another, that predict prompt tokens of a Sequence."""

    rows: range
    next_token_ids: list[int]
    count: int  # of likeliest tokens that are reported
    logprobs: list[TokenLogprobs]  # the Sequence's, where what is read goes


def find_prompt_rows(entries: Iterable[ScheduledSequence]) -> tuple[PromptRows, ...]:
    """Return where a Step computes prompt positions whose logprobs are asked for and not yet known."""
    found = []
    row = 0
    for entry in entries:
        sequence = entry.sequence
        if sequence.prompt_logprobs is not None:
            # Position p predicts token p + 1. After a preemption some are computed again.
            start = max(entry.start, len(sequence.prompt_logprobs))
            stop = min(entry.start + entry.num_tokens, sequence.num_prompt_tokens - 1)
            if start < stop:
                found.append(
                    PromptRows(
                        rows=range(row - entry.start + start, row - entry.start + stop),
                        next_token_ids=sequence.token_ids[start + 1 : stop + 1],
                        count=sequence.params.prompt_logprobs or 0,
                        logprobs=sequence.prompt_logprobs,
                    )
                )
        row += entry.num_tokens
    return tuple(found)


def read_prompt_logprobs(
    hidden: Tensor, found: Iterable[PromptRows], logits_of: Callable[[Tensor], Tensor]
) -> None:
    """Append to each Sequence what its rows say; `hidden` [num_rows, hidden_size] has them in order."""
    start = 0
    for one in found:
        for offset in range(0, len(one.rows), ROWS_AT_ONCE):
            token_ids = one.next_token_ids[offset : offset + ROWS_AT_ONCE]
            logits = logits_of(hidden[start : start + len(token_ids)])
            one.logprobs.extend(token_logprobs(logits, token_ids, [one.count] * len(token_ids)))
            start += len(token_ids)
