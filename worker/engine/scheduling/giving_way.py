"""Orders running Sequences, and chooses which of them gives way to another."""

from collections.abc import Sequence as Items

from worker.engine.sequences.sequence import Sequence


def order(sequence: Sequence) -> tuple[bool, int]:
    """Return the place of a running Sequence as a sort key: urgent ones first, then by arrival."""
    return not sequence.is_urgent, sequence.arrival


def least(sequences: Items[Sequence]) -> Sequence:
    """Return the Sequence to preempt: in the group of the cheapest one, that of the lowest priority."""
    cheapest = min(sequences, key=_loss)
    group = [one for one in sequences if one.share.group == cheapest.share.group]
    return min(group, key=lambda one: (one.is_urgent, one.share.priority, *_loss(one)))


def _loss(sequence: Sequence) -> tuple[bool, int, int]:
    """Return the cost of a preemption as a sort key: fewest computed tokens first, the youngest on a tie.

    Urgent Sequences come last.
    """
    return sequence.is_urgent, sequence.num_computed_tokens, -sequence.arrival
