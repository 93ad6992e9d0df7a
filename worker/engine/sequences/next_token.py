"""Defines one token that a Step chose for a Sequence."""

from dataclasses import dataclass

from worker.values.logprobs import TokenLogprob


@dataclass(slots=True)
class NextToken:
    """The next token of a Sequence; None if its logits are not finite."""

    token_id: int | None
    logprob: TokenLogprob | None = None  # if the Sequence asks for it
