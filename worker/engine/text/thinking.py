"""Makes what follows a Sequence's thoughts, and counts the tokens of thoughts."""

from bisect import bisect_left
from collections.abc import Sequence as Tokens

from worker.engine.sequences.thoughts import Thoughts
from worker.engine.text.tokenizer import TextStream, Tokenizer
from worker.values.sampling import SamplingParams
from worker.values.thinking import Thinking


def new_thoughts(params: SamplingParams, tokenizer: Tokenizer) -> Thoughts | None:
    """Return the thoughts of a new output; None if nothing depends on where they end.

    An output with a format begins with thoughts, because the format is that of the answer after them.
    """
    thinking = params.thinking
    if thinking is None or (params.format is None and params.thinking_budget is None):
        return None
    opening = "" if thinking.is_open or params.format is None else thinking.opening
    opening_ids, end_ids = tokenizer.encode_batch([opening, thinking.end], add_special_tokens=False)
    return Thoughts(
        thinking,
        TextStream(tokenizer, skip_special_tokens=False).push,
        opening_ids=opening_ids,
        end_ids=end_ids,
        budget=params.thinking_budget,
    )


def num_reasoning_tokens(thinking: Thinking, token_ids: Tokens[int], tokenizer: Tokenizer) -> int:
    """Return how many of an output's tokens are thoughts and their marks."""

    def text_of(num_tokens: int) -> str:
        return tokenizer.decode(token_ids[:num_tokens], skip_special_tokens=False)

    text = text_of(len(token_ids))
    if not (thinking.is_open or text.lstrip().startswith(thinking.opening)):
        return 0
    if thinking.closing not in text:
        return len(token_ids)
    return bisect_left(range(len(token_ids)), True, key=lambda number: thinking.closing in text_of(number))
