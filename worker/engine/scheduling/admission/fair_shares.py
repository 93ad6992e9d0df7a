"""Whose turn it is: waiting Sequences of several groups, each group with an order of its own.

Start-time fair queueing with tokens as the cost, a row at a time, as between shards
(worker/store/shards/fair_share.py): docs/decisions/0013.
"""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from worker.engine.scheduling.admission.own_order import OwnOrder, loss
from worker.engine.scheduling.admission.policy import AdmissionPolicy
from worker.engine.sequences.sequence import Sequence

# A group that had nothing waiting may be so many tokens, over its weight, behind those that had: a little
# work need not share before it has used them up. More is not saved.
SAVED_TOKENS = 200_000.0
MAX_IDLE_GROUPS = 256  # that are remembered
FEW = 8  # a batch with at most one in so many of what runs has few
MOST = 4  # and all such batches together at most one in so many
DISPLACE_SHARE = 0.25  # who is behind by more than this share of it takes the place of what runs


@dataclass(slots=True, eq=False)
class _Group:
    """All counts of tokens are over the group's weight."""

    order: OwnOrder
    weight: float
    served: float = 0.0  # computed for Sequences that have left
    reserved: float = 0.0  # for those that run, from their start to the longest they may become
    charges: dict[Sequence, float] = field(default_factory=dict)  # what each running one has reserved
    num_waiting: int = 0
    is_tried: bool = False  # it has nothing more to offer in this Step

    @property
    def has_work(self) -> bool:
        """Whether any Sequence of it waits or runs."""
        return bool(self.num_waiting or self.charges)

    @property
    def place(self) -> float:
        """Lower goes first."""
        return self.served + self.reserved


class FairShares:
    """Admits of the group that has had the least, and tells who must give way.

    A Sequence counts in full when it starts; what it has not used comes back when it ends. With one group
    this is that group's order and nothing more.
    """

    def __init__(
        self, make_queue: Callable[[], AdmissionPolicy], *, saved_tokens: float = SAVED_TOKENS
    ) -> None:
        self._make_queue = make_queue
        self._saved_tokens = saved_tokens
        self._displace_tokens = DISPLACE_SHARE * saved_tokens
        self._groups: dict[Hashable, _Group] = {}
        self._refused: _Group | None = None  # in this Step
        self._must_exchange = False  # what was popped last may have only what another of its group gives up

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence, new or preempted, with its group."""
        group = self._group(sequence)
        if not group.num_waiting and len(self._groups) > 1:
            self._begin(sequence.share.group, group)
        group.weight = sequence.share.weight
        group.num_waiting += 1
        group.is_tried = False
        group.order.add(sequence)

    def start_step(self) -> None:
        """Begin a Step."""
        self._refused = None
        for group in self._groups.values():
            group.is_tried = False
            group.order.start_step()

    def pop(self) -> Sequence | None:
        """Take out the next Sequence to try.

        While one that found no room waits, no other group's but for what another of that group makes way for.
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
        """Return what was popped last and not admitted; refused: there was no room for it."""
        group = self._group(sequence)
        group.order.put_back(sequence, is_refused=is_refused)
        if self._must_exchange:
            group.is_tried = True
        elif is_refused:
            self._refused = group

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Whether a Sequence may take `num_needed` free Blocks beside those that run."""
        return self._group(sequence).order.has_room(sequence, num_needed, running)

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Note how long the output of a Sequence became; cut: it would have gone on."""
        self._group(sequence).order.learn(sequence, is_cut=is_cut)

    def started(self, sequence: Sequence) -> None:
        """Charge a Sequence, which runs from now on, for all that it may still need."""
        group = self._group(sequence)
        group.charges[sequence] = charge = _cost(sequence) / group.weight
        group.reserved += charge
        if not sequence.is_urgent:
            group.order.started(sequence, _cost(sequence))

    def stopped(self, sequence: Sequence) -> None:
        """Give back what a Sequence, which still holds its Blocks, has not used."""
        group = self._group(sequence)
        charge = group.charges.pop(sequence)
        group.reserved = group.reserved - charge if group.charges else 0.0
        group.served += charge - _cost(sequence) / group.weight
        if not sequence.is_urgent:
            group.order.stopped(sequence)

    def left_queue(self, sequence: Sequence) -> None:
        """Count a Sequence that waits no longer, admitted or ended."""
        group = self._group(sequence)
        group.num_waiting -= 1
        group.order.left_queue(sequence)

    def few(self) -> frozenset[Sequence]:
        """Return what runs of batches that have few running, where others have most of what runs.

        But of what has a lower priority than others of its group.
        """
        batches = [batch for group in self._groups.values() for batch in group.order.running()]
        num_running = sum(len(batch) for batch, _ in batches)
        small = [batch for batch, is_highest in batches if is_highest and FEW * len(batch) <= num_running]
        # Of those that are at their end only the host has yet to see the last token.
        found = frozenset(
            one
            for batch in small
            for one in batch
            if not (one.is_alone or (one.num_pending_tokens and one.is_at_end))
        )
        return found if MOST * sum(map(len, small)) <= num_running else frozenset()

    def may_displace(self) -> bool:
        """Whether what runs must give way: to a group that is far behind, or to another of its own group."""
        if any(not group.is_tried and group.order.may_exchange() for group in self._groups.values()):
            return True
        if len(self._groups) < 2:
            return False
        highest = max((group.place for group in self._groups.values() if group.charges), default=0.0)
        behind = self._next()
        return behind is not None and highest - behind.place > self._displace_tokens

    @property
    def must_exchange(self) -> bool:
        """Whether what was popped last may start only if another of its group gives way to it."""
        return self._must_exchange

    def displaced_by(self, sequence: Sequence, running: Items[Sequence]) -> Sequence | None:
        """Return which of `running` gives way to what was popped last: of the group ahead, else of its own.

        None: its group would be too little behind after that. No exchange is ever followed by its reverse.
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
        """Have the queue of what was popped last look anew at what runs: something gave way to it."""
        self._group(sequence).order.look_again()

    def _group(self, sequence: Sequence) -> _Group:
        key = sequence.share.group
        group = self._groups.get(key)
        if group is None:
            self._forget_idle()
            group = _Group(OwnOrder(self._make_queue), sequence.share.weight)
            group.served = self._highest() - self._saved_tokens
            self._groups[key] = group
        return group

    def _next(self) -> _Group | None:
        waiting = [group for group in self._groups.values() if group.num_waiting and not group.is_tried]
        return min(waiting, key=lambda group: group.place, default=None)

    def _begin(self, key: Hashable, group: _Group) -> None:
        """Place a group that had nothing waiting."""
        if any(other.has_work for other in self._groups.values()):
            group.served = max(group.served, self._highest() - self._saved_tokens)
        else:  # nobody is behind
            group.served = 0.0
            self._groups = {key: group}

    def _highest(self) -> float:
        return max((group.served for group in self._groups.values() if group.has_work), default=0.0)

    def _forget_idle(self) -> None:
        """Drop groups that would start anew where they are now, and of too many those that had the least."""
        idle = [key for key, group in self._groups.items() if not group.has_work]
        idle.sort(key=lambda key: self._groups[key].served, reverse=True)
        floor = self._highest() - self._saved_tokens
        for number, key in enumerate(idle):
            if number >= MAX_IDLE_GROUPS or self._groups[key].served <= floor:
                del self._groups[key]


def _cost(sequence: Sequence) -> float:
    """Return the most tokens it may still need computed for the first time."""
    done = max(sequence.max_computed_tokens, sequence.num_computed_tokens)
    return max(0, sequence.num_prompt_tokens + sequence.params.max_tokens - done)
