"""Says for which Sequences tokens are guessed, and leaves of a guess what may be right at all."""

from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation.proposer import GuessedTokens
from worker.values.sampling import Optimization


def may_guess(sequence: Sequence) -> bool:
    """Return whether tokens may be guessed for a Sequence."""
    # Thoughts are followed token by token on the host.
    return sequence.params.optimization is Optimization.FULL and sequence.thoughts is None


def takes_guesses(sequence: Sequence) -> bool:
    """Return whether tokens may be guessed for a Sequence that is not at its last one."""
    return may_guess(sequence) and sequence.num_tokens_left > 1


def only_allowed(sequence: Sequence, guess: GuessedTokens) -> GuessedTokens:
    """Return a guess without what its Sequence's end tokens or grammar rule out."""
    if sequence.matcher is None and sequence.stop_token_ids.isdisjoint(guess.token_ids):
        return guess
    if guess.parents:
        return _of_tree(sequence, guess)
    token_ids = guess.token_ids
    for index, token_id in enumerate(token_ids):
        if token_id in sequence.stop_token_ids:
            token_ids = token_ids[:index]
            break
    if token_ids and sequence.matcher is not None:
        token_ids = token_ids[: sequence.matcher.num_allowed(token_ids)]
    return guess if len(token_ids) == len(guess.token_ids) else guess.first(len(token_ids))


def _of_tree(sequence: Sequence, guess: GuessedTokens) -> GuessedTokens:
    matcher = sequence.matcher
    kept: list[int] = []
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for place, (token_id, parent) in enumerate(zip(guess.token_ids, guess.parents, strict=True)):
        if parent not in paths or token_id in sequence.stop_token_ids:
            continue
        path = (*paths[parent], token_id)
        if matcher is None or matcher.num_allowed(path) == len(path):
            paths[place] = path
            kept.append(place)
    return guess if len(kept) == len(guess.token_ids) else guess.only(kept)
