"""Resumes a new Sequence after the output of an earlier run. Runs on the host only."""

from collections.abc import Sequence as Tokens

from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.stats import ModelInfo
from worker.engine.sequences.sequence import Sequence
from worker.engine.text.stopping import StopChecker, finish_reason


def resume(
    sequence: Sequence, output_token_ids: Tokens[int], stop_checker: StopChecker | None, model_info: ModelInfo
) -> None:
    """Append known output tokens to a Sequence and advance its grammar matcher and stop checker.

    Nothing else needs restoring: a draw depends on the seed and the position, a penalty on the tokens.

    Raises:
        InvalidRequestError: the output cannot continue after these tokens.

    """
    if output_token_ids and (sequence.params.num_choices > 1 or sequence.needs_logprobs):
        raise InvalidRequestError("output_token_ids: needs one choice and no logprobs")
    for token_id in output_token_ids:
        if not 0 <= token_id < model_info.vocab_size:
            raise InvalidRequestError(f"output_token_ids: {token_id} is outside the vocabulary")
        sequence.token_ids.append(token_id)
        has_ended = finish_reason(sequence) is not None
        if sequence.matcher is not None:
            has_ended |= sequence.matcher.push(token_id)
        if stop_checker is not None:
            has_ended |= stop_checker.push(token_id)
        if has_ended:
            raise InvalidRequestError("output_token_ids: the output has come to its end")
