"""When a Sequence's output ends, and what text it leaves. Host work only."""

from worker.engine.sequence import FinishReason, Sequence
from worker.engine.tokenizer import TextStream, Tokenizer


class StopChecker:
    """Watches one Sequence's output for stop strings.

    Only Sequences that have stop strings have one: the others are decoded once, when they end.
    """

    __slots__ = ("_longest", "_stop", "_stream", "_text")

    def __init__(self, stop: tuple[str, ...], tokenizer: Tokenizer) -> None:
        self._stop = stop
        self._longest = max(map(len, stop))
        self._stream = TextStream(tokenizer)
        self._text = ""

    def push(self, token_id: int) -> bool:
        """Add a token; return whether a stop string is now complete."""
        new_text = self._stream.push(token_id)
        if not new_text:
            return False
        self._text += new_text
        tail = self._text[-(len(new_text) + self._longest - 1) :]
        return any(stop in tail for stop in self._stop)


def cut_at_stop(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Return `text` up to the earliest stop string, and whether there was one."""
    found = [index for index in map(text.find, stop) if index >= 0]
    return (text[: min(found)], True) if found else (text, False)


def finish_reason(sequence: Sequence, max_model_len: int) -> FinishReason | None:
    """Return why a Sequence ends with its newest token, stop strings aside; None while it goes on."""
    if sequence.token_ids[-1] in sequence.stop_token_ids:
        return FinishReason.STOP
    if sequence.num_output_tokens >= sequence.params.max_tokens or len(sequence.token_ids) >= max_model_len:
        return FinishReason.LENGTH
    return None


def output_text(sequence: Sequence, tokenizer: Tokenizer) -> tuple[str, bool]:
    """Return the text generated, cut before what stopped it, and whether a stop string did."""
    token_ids = sequence.token_ids[sequence.num_prompt_tokens :]
    if token_ids and token_ids[-1] in sequence.stop_token_ids:
        token_ids = token_ids[:-1]
    return cut_at_stop(tokenizer.decode(token_ids), sequence.params.stop)
