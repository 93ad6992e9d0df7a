"""Compares the logits of two sets of weights at the tokens of a text."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.quality.text import TextComparison, compare_text

CHUNK = 256  # tokens whose probabilities are in memory together


@dataclass(slots=True)
class LogitComparison:
    """What two sets of weights, A and B, make of the tokens of a text, in order."""

    logprobs_a: list[float] = field(default_factory=list)  # of the text's own tokens
    logprobs_b: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)  # of B from A, in nats
    num_agreeing: int = 0

    def add(self, a: Tensor, b: Tensor, token_ids: Tensor) -> None:
        """Add the logits [num_tokens, vocab_size] from which each of `token_ids` [num_tokens] was to come."""
        for one, other, wanted in zip(*(torch.split(each, CHUNK) for each in (a, b, token_ids)), strict=True):
            logprobs_a, logprobs_b = (logits.float().log_softmax(dim=1) for logits in (one, other))
            self.logprobs_a += logprobs_a.gather(1, wanted.unsqueeze(1)).flatten().tolist()
            self.logprobs_b += logprobs_b.gather(1, wanted.unsqueeze(1)).flatten().tolist()
            self.divergences += (logprobs_a.exp() * (logprobs_a - logprobs_b)).sum(dim=1).tolist()
            self.num_agreeing += int((logprobs_a.argmax(dim=1) == logprobs_b.argmax(dim=1)).sum())

    def result(self) -> TextComparison:
        """Return the comparison with its intervals; raises ValueError if nothing was added."""
        return compare_text(self.logprobs_a, self.logprobs_b, self.divergences, self.num_agreeing)
