"""Grows a choice's output token by token and decides when it ends. Runs on the host only."""

from collections.abc import Sequence as Tokens

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.sequences.sequence import Sequence
from worker.engine.text.stopping import StopChecker
from worker.engine.text.thinking import num_reasoning_tokens
from worker.engine.text.tokenizer import TextStream, Tokenizer
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason
from worker.values.results import Choice


class Output:
    """The output of one Sequence, which becomes the Choice of this index."""

    __slots__ = ("_sequence", "_stop_checker", "_tokenizer", "stream")

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer, index: int, *, is_streamed: bool) -> None:
        params = sequence.params
        self._sequence = sequence
        self._tokenizer = tokenizer
        self._stop_checker = StopChecker(params, tokenizer) if params.stop else None
        self.stream = OutputStream(sequence, index, tokenizer) if is_streamed else None

    def push(self, token_id: int) -> FinishReason | None:
        """Append a token to the Sequence; return why the output ends with it, None while it continues.

        Raises InvalidRequestError when the grammar is too complex to continue.
        """
        sequence = self._sequence
        sequence.token_ids.append(token_id)
        reason = None
        if token_id in sequence.stop_token_ids:
            reason = FinishReason.STOP
        elif len(sequence.token_ids) >= sequence.max_length:
            reason = FinishReason.LENGTH
        if sequence.thoughts is not None:
            sequence.thoughts.push(token_id)
            if sequence.thoughts.is_over:
                sequence.end_thoughts()
        elif sequence.matcher is not None and sequence.matcher.push(token_id):
            return FinishReason.STOP
        if reason is None and self._stop_checker is not None and self._stop_checker.push(token_id):
            return FinishReason.STOP
        return reason

    def resume(self, token_ids: Tokens[int], vocab_size: int) -> None:
        """Append the output of an earlier run.

        Nothing else needs restoring: a draw depends on the seed and the position, a penalty on the tokens.

        Raises:
            InvalidRequestError: the output cannot continue after these tokens.

        """
        if token_ids and (self._sequence.params.num_choices > 1 or self._sequence.needs_logprobs):
            raise InvalidRequestError("output_token_ids is for one choice without logprobs")
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(f"output_token_ids has {token_id}, which is outside the vocabulary")
            if self.push(token_id) is not None:
                raise InvalidRequestError("output_token_ids holds a whole output: nothing may follow it")

    def choice(self, reason: FinishReason) -> Choice:
        """Return the Choice of an output that ended for this reason, with the text cut before its end."""
        sequence, params = self._sequence, self._sequence.params
        token_ids = sequence.token_ids[sequence.num_prompt_tokens :]
        has_end_token = bool(token_ids) and token_ids[-1] in sequence.stop_token_ids
        is_cut = has_end_token and not (
            params.include_stop_str_in_output and token_ids[-1] in params.stop_token_ids
        )
        text = self._tokenizer.decode(
            token_ids[:-1] if is_cut else token_ids, skip_special_tokens=params.skip_special_tokens
        )
        stop = None
        if self._stop_checker is not None:
            text, stop = self._stop_checker.cut(text)
            if stop is not None and reason is FinishReason.LENGTH:
                reason = FinishReason.STOP
        return Choice(
            text=text,
            token_ids=tuple(token_ids),
            finish_reason=reason,
            num_reasoning_tokens=(
                0
                if params.thinking is None
                else num_reasoning_tokens(params.thinking, token_ids, self._tokenizer)
            ),
            stop=stop,
            logprobs=None if sequence.params.logprobs is None else tuple(sequence.logprobs),
        )


class OutputStream:
    """Turns one Sequence's tokens into Deltas.

    It holds back text that may be the beginning of a stop string, or an incomplete character.
    """

    __slots__ = ("_held", "_index", "_num_tokens", "_num_told", "_sequence", "_stream")

    def __init__(self, sequence: Sequence, index: int, tokenizer: Tokenizer) -> None:
        self._sequence = sequence
        self._index = index  # of the choice
        self._stream = TextStream(tokenizer, skip_special_tokens=sequence.params.skip_special_tokens)
        self._held = ""
        self._num_told = 0  # characters sent
        self._num_tokens = 0  # sent

    def push(self, token_id: int) -> Delta | None:
        """Add a token that did not end the output; return the Delta that is certain now, if any."""
        self._held += self._stream.push(token_id)
        certain = len(self._held) - _num_uncertain(self._held, self._sequence.params.stop)
        if certain <= 0:
            return None
        text, self._held = self._held[:certain], self._held[certain:]
        return self._delta(text, None)

    def close(self, choice: Choice) -> Delta:
        """Return the last Delta of a choice that has ended."""
        return self._delta(choice.text[self._num_told :], choice.finish_reason)

    def _delta(self, text: str, reason: FinishReason | None) -> Delta:
        sequence = self._sequence
        num_tokens = sequence.num_output_tokens - self._num_tokens
        logprobs = None
        if sequence.params.logprobs is not None:
            logprobs = tuple(sequence.logprobs[self._num_tokens :])
        token_ids: tuple[int, ...] = ()
        if sequence.params.return_token_ids:
            token_ids = tuple(sequence.token_ids[sequence.num_prompt_tokens + self._num_tokens :])
        delta = Delta(
            sequence.request_id, self._index, self._num_told, text, num_tokens, logprobs, reason, token_ids
        )
        self._num_told += len(text)
        self._num_tokens += num_tokens
        return delta


def _num_uncertain(text: str, stop: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of a stop string."""
    longest = min(len(text), max(map(len, stop), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(one.startswith(text[-length:]) for one in stop):
            return length
    return 0
