"""Chooses the group whose waiting Sequence is admitted next, by start-time fair queueing over tokens.

Admits one Sequence at a time and leaves the order within a group to the group. Works as fair queueing between
Shards does (worker/store/shards/fair_share.py): docs/decisions/0013. Knows no tenants.
"""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from worker.engine.scheduling.admission.own_order import OwnOrder, loss
from worker.engine.sequences.sequence import Sequence

# An idle group banks at most this weighted credit of tokens (tokens divided by its weight): it need not share
# before it has used them up.
SAVED_TOKENS = 200_000.0
MAX_IDLE_GROUPS = 256  # idle groups that are remembered
FEW = 8  # a batch with at most 1 / FEW of the running Sequences is small
MOST = 4  # all small batches together have at most 1 / MOST of the running Sequences
DISPLACE_SHARE = 0.25  # a group behind by more than this share of the credit displaces running Sequences


@dataclass(slots=True, eq=False)
class _Group:
    """Account of one group; all counts of tokens are weighted: divided by the group's weight."""

    order: OwnOrder
    weight: float
    served: float = 0.0  # for Sequences that have stopped
    reserved: float = 0.0  # for running Sequences, from their start to their longest possible output
    charges: dict[Sequence, float] = field(default_factory=dict)  # reserved by each running Sequence
    num_waiting: int = 0
    is_tried: bool = False  # nothing more to try in this Step

    @property
    def has_work(self) -> bool:
        """True if any Sequence of the group waits or runs."""
        return bool(self.num_waiting or self.charges)

    @property
    def place(self) -> float:
        """Tokens served and reserved; the group with the lowest goes first."""
        return self.served + self.reserved


class FairShares:
    """Admits from the group with the fewest weighted tokens, and chooses the Sequences that must give way.

    A Sequence is charged in full when it starts and gets unused tokens back when it stops. With one group,
    only that group's own order counts.
    """

    def __init__(self, make_order: Callable[[], OwnOrder], *, saved_tokens: float = SAVED_TOKENS) -> None:
        self._make_order = make_order
        self._saved_tokens = saved_tokens
        self._displace_tokens = DISPLACE_SHARE * saved_tokens
        self._groups: dict[Hashable, _Group] = {}
        self._refused: _Group | None = None  # in this Step
        self._must_exchange = False  # the Sequence popped last may start only if one of its group gives way

    def add(self, sequence: Sequence) -> None:
        """Queue a new or preempted Sequence in its group."""
        group = self._group(sequence)
        if not group.num_waiting and len(self._groups) > 1:
            self._begin(sequence.share.group, group)
        group.weight = sequence.share.weight
        group.num_waiting += 1
        group.is_tried = False
        group.order.add(sequence)

    def start_step(self) -> None:
        """Begin a Step: refused Sequences may be tried again."""
        self._refused = None
        for group in self._groups.values():
            group.is_tried = False
            group.order.start_step()

    def pop(self) -> Sequence | None:
        """Remove and return the next Sequence to try; None if there is none.

        After a refusal in this Step, other groups may offer only Sequences for which one of their own group
        gives way.
        """
        self._must_exchange = False
        while (group := self._refused or self._next()) is not None:
            sequence = None if group.is_tried else group.order.pop()
            if sequence is not None:
                return sequence
            group.is_tried = True
            if group is self._refused:
                break
        self._must_exchange = True
        for group in self._groups.values():
            if not group.is_tried and group.order.may_exchange():
                sequence = group.order.pop()
                if sequence is not None:
                    return sequence
        return None

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Queue the Sequence popped last again, not admitted; `is_refused`: it found no room."""
        group = self._group(sequence)
        group.order.put_back(sequence, is_refused=is_refused)
        if self._must_exchange:
            group.is_tried = True
        elif is_refused:
            self._refused = group

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Return whether a Sequence may take `num_needed` free Blocks beside the running ones."""
        return self._group(sequence).order.has_room(sequence, num_needed, running)

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Learn the output length of an ended Sequence; `is_cut`: its limit ended it."""
        self._group(sequence).order.learn(sequence, is_cut=is_cut)

    def started(self, sequence: Sequence) -> None:
        """Charge a Sequence that starts to run for all tokens it may still need."""
        group = self._group(sequence)
        group.charges[sequence] = charge = _cost(sequence) / group.weight
        group.reserved += charge
        if not sequence.is_urgent:
            group.order.started(sequence, _cost(sequence))

    def stopped(self, sequence: Sequence) -> None:
        """Refund the unused tokens of a Sequence that stops; call it before its Blocks are released."""
        group = self._group(sequence)
        charge = group.charges.pop(sequence)
        group.reserved = group.reserved - charge if group.charges else 0.0
        group.served += charge - _cost(sequence) / group.weight
        if not sequence.is_urgent:
            group.order.stopped(sequence)

    def left_queue(self, sequence: Sequence) -> None:
        """Record that a Sequence waits no longer: it was admitted or has ended."""
        group = self._group(sequence)
        group.num_waiting -= 1
        group.order.left_queue(sequence)

    def few(self) -> frozenset[Sequence]:
        """Return the running Sequences of small batches, those with at most 1 / FEW of all running ones.

        Leaves out batches of a lower priority than another running one of their group. Empty if all small
        batches together have more than 1 / MOST of the running Sequences.
        """
        batches = [batch for group in self._groups.values() for batch in group.order.running()]
        num_running = sum(len(batch) for batch, _ in batches)
        small = [batch for batch, is_highest in batches if is_highest and FEW * len(batch) <= num_running]
        # A Sequence at its end needs no Step: the host has only not seen its last token yet.
        found = frozenset(
            one
            for batch in small
            for one in batch
            if not (one.is_alone or (one.num_pending_tokens and one.is_at_end))
        )
        return found if MOST * sum(map(len, small)) <= num_running else frozenset()

    def may_displace(self) -> bool:
        """Return whether a running Sequence may have to give way, to a group far behind or to its own."""
        if any(not group.is_tried and group.order.may_exchange() for group in self._groups.values()):
            return True
        if len(self._groups) < 2:
            return False
        highest = max((group.place for group in self._groups.values() if group.charges), default=0.0)
        behind = self._next()
        return behind is not None and highest - behind.place > self._displace_tokens

    @property
    def must_exchange(self) -> bool:
        """True if the Sequence popped last may start only if another of its group gives way."""
        return self._must_exchange

    def displaced_by(self, sequence: Sequence, running: Items[Sequence]) -> Sequence | None:
        """Return which of `running` gives way to the Sequence popped last: of the group ahead, else its own.

        None if its group would not be far enough behind after that. An exchange is never followed by its
        reverse.
        """
        own = self._group(sequence)
        victim = None if self._must_exchange else self._of_another(sequence, own, running)
        if victim is None:
            of_own = [other for other in running if self._group(other) is own]
            victim = own.order.gives_way(sequence, _cost(sequence), of_own)
        return victim

    def _of_another(self, sequence: Sequence, own: _Group, running: Items[Sequence]) -> Sequence | None:
        others = [other for other in running if self._group(other) is not own]
        ahead = max((self._group(other) for other in others), key=lambda group: group.place, default=None)
        if ahead is None:
            return None
        victim = min((other for other in others if self._group(other) is ahead), key=loss)
        gap = ahead.place - _cost(victim) / ahead.weight - own.place - _cost(sequence) / own.weight
        return victim if gap > self._displace_tokens else None

    def made_way(self, sequence: Sequence) -> None:
        """Make the queue of the Sequence popped last recheck what runs, since one gave way to it."""
        self._group(sequence).order.look_again()

    def _group(self, sequence: Sequence) -> _Group:
        key = sequence.share.group
        group = self._groups.get(key)
        if group is None:
            self._forget_idle()
            group = _Group(self._make_order(), sequence.share.weight)
            group.served = self._highest() - self._saved_tokens
            self._groups[key] = group
        return group

    def _next(self) -> _Group | None:
        waiting = [group for group in self._groups.values() if group.num_waiting and not group.is_tried]
        return min(waiting, key=lambda group: group.place, default=None)

    def _begin(self, key: Hashable, group: _Group) -> None:
        """Set the place of a group that had nothing waiting, limiting its credit."""
        if any(other.has_work for other in self._groups.values()):
            group.served = max(group.served, self._highest() - self._saved_tokens)
        else:  # no other group has work, so none is behind
            group.served = 0.0
            self._groups = {key: group}

    def _highest(self) -> float:
        return max((group.served for group in self._groups.values() if group.has_work), default=0.0)

    def _forget_idle(self) -> None:
        """Forget idle groups whose place a new group would get anyway, then those with the fewest tokens."""
        idle = [key for key, group in self._groups.items() if not group.has_work]
        idle.sort(key=lambda key: self._groups[key].served, reverse=True)
        floor = self._highest() - self._saved_tokens
        for number, key in enumerate(idle):
            if number >= MAX_IDLE_GROUPS or self._groups[key].served <= floor:
                del self._groups[key]


def _cost(sequence: Sequence) -> float:
    """Return the most tokens of a Sequence that may still be computed for the first time."""
    done = max(sequence.max_computed_tokens, sequence.num_computed_tokens)
    return max(0, sequence.num_prompt_tokens + sequence.params.max_tokens - done)
