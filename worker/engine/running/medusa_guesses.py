"""Guesses with a model's Medusa heads, from the hidden states that chose the newest tokens."""

import time
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from statistics import median

import torch
from torch import Tensor

from kernels.sampling import likeliest
from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.models.registry import LoadedModel
from worker.engine.running.device import is_out_of_memory
from worker.engine.sequences.sequence import Sequence
from worker.engine.speculation.proposer import MAX_GUESSES, NO_GUESS, GuessedTokens

SOURCE = "medusa"
LEVELS = 8  # of a head's own probability; tokens of one head and level are right about equally often
REMEMBERED_PASSES = 9
KEPT_STEPS = 4  # whose hidden states are kept: a Sequence may have been left out of the last ones
REMEMBERED = 64.0  # guesses; older ones fade
RENEWED = 16  # looks that are learned from before the tree is made again
# The shares of right ones among a head's candidates, likeliest first, before any guess, and how many guesses
# these count as. So the first trees are fixed, and later ones are pruned by what was right.
FIRST, WEIGHT = (0.5, 0.15, 0.08, 0.05, 0.04), 4.0
MAX_LOGITS = 1 << 24  # computed at once


@dataclass(frozen=True, slots=True)
class _Node:
    """A token of a tree: a candidate of a head."""

    share: float  # how often it is right with those before it
    parent: int  # the place of its parent among the nodes; -1: the newest token
    head: int
    rank: int


class MedusaGuesses:
    """Proposes a tree of the heads' likeliest tokens: those paths that were right most often.

    The heads have no cache: a guess needs only the hidden state of the newest token's row, which
    `chose` keeps.
    """

    def __init__(self, model: LoadedModel, heads: MedusaHeads, vocab_size: int) -> None:
        self._model, self._heads = model, heads
        self._at_once = max(1, MAX_LOGITS // (vocab_size * heads.num_heads))  # Sequences
        self._num_candidates = min(len(FIRST), vocab_size)
        # The latest Steps with their hidden states, the last one at the end.
        self._steps: deque[tuple[Chosen, Tensor]] = deque(maxlen=KEPT_STEPS)
        # Of each head, and how many tokens were known then; until it is seen which ones were right.
        self._candidates: dict[Sequence, tuple[int, list[list[int]]]] = {}
        self._tried = [0.0] * heads.num_heads
        self._right = [[0.0] * len(FIRST) for _ in range(heads.num_heads)]  # by rank
        self._renew()
        self._passes: deque[float] = deque(maxlen=REMEMBERED_PASSES)  # seconds
        # Their median: the time of guessing for every Sequence, however many tokens; 0 before the first.
        self.seconds_per_pass = 0.0

    def chose(self, chosen: Chosen, hidden: Tensor) -> None:
        """Keep a Step's hidden states [num_rows, hidden_size]."""
        if chosen.sequences:
            self._steps.append((chosen, hidden))

    @torch.inference_mode()
    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; out of memory, there is none.

        Learns first which candidates of the last guesses were right, verified or not.
        """
        self._learn()
        guesses = [NO_GUESS] * len(sequences)
        states = self._states(sequences)
        wanted = [
            (place, one.token_ids[-1], *states[one])
            for place, (one, limit) in enumerate(zip(sequences, limits, strict=True))
            if limit > 0 and one in states
        ]
        if not wanted:
            return guesses
        nodes = self._nodes[: max(limits)]
        try:
            if not self._passes:  # it loads compiled code, so its time would say nothing about later ones
                self._pass(wanted, nodes)
            began = time.perf_counter()
            found = self._pass(wanted, nodes)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return guesses
        self._passes.append(time.perf_counter() - began)
        self.seconds_per_pass = median(self._passes)
        for (place, *_), (guess, candidates) in zip(wanted, found, strict=True):
            guesses[place] = guess.first(limits[place])
            self._candidates[sequences[place]] = len(sequences[place].token_ids), candidates
        return guesses

    def ended(self, sequence: Sequence) -> None:
        """Do nothing: what is kept is forgotten in a few Steps."""

    def _states(self, sequences: Items[Sequence]) -> dict[Sequence, tuple[Tensor, int]]:
        """Return the hidden states, and the row in them, of each Sequence whose latest Step is kept."""
        found: dict[Sequence, tuple[Tensor, int]] = {}
        missing = set(sequences)
        for chosen, hidden in reversed(self._steps):
            for sequence, rows in zip(chosen.sequences, chosen.rows, strict=True):
                if sequence in missing:
                    found[sequence] = hidden, rows[-1]
            missing -= found.keys()
            if not missing:
                break
        return found

    def _learn(self) -> None:
        for sequence, (num_known, heads) in self._candidates.items():
            for head, (candidates, token_id) in enumerate(
                zip(heads, sequence.token_ids[num_known:], strict=False)
            ):
                fade = min(1.0, REMEMBERED / (self._tried[head] + 1))
                self._tried[head] = fade * (self._tried[head] + 1)
                self._right[head] = [
                    fade * (right + (candidate == token_id))
                    for right, candidate in zip(self._right[head], candidates, strict=False)
                ]
                if token_id not in candidates:
                    break
        if self._candidates:
            self._candidates.clear()
            self._num_learned += 1
            if self._num_learned == RENEWED:
                self._renew()

    def _renew(self) -> None:
        """Make the tree of what is known now."""
        self._nodes = self._tree()  # best first
        self._num_learned = 0  # looks since then
        # How likely each token of the tree is right with those before it, best first.
        self.shares: tuple[float, ...] = tuple(node.share for node in self._nodes)

    def _tree(self) -> list[_Node]:
        """Return the tree of the largest sum of shares: no token is likelier than the one that it follows."""
        rates = [
            [
                (right + WEIGHT * first) / (tried + WEIGHT)
                for right, first in zip(ranks[: self._num_candidates], FIRST, strict=False)
            ]
            for ranks, tried in zip(self._right, self._tried, strict=True)
        ]
        nodes: list[_Node] = []
        # By share, the largest first; those of equal shares in the order in which they are found.
        heap = [(-share, rank, -1, 0, rank) for rank, share in enumerate(rates[0])]
        heapify(heap)
        num_found = len(heap)
        while heap and len(nodes) < MAX_GUESSES:
            negative, _, parent, head, rank = heappop(heap)
            place = len(nodes)
            nodes.append(_Node(-negative, parent, head, rank))
            if head + 1 < len(rates):
                for next_rank, share in enumerate(rates[head + 1]):
                    heappush(heap, (negative * share, num_found, place, head + 1, next_rank))
                    num_found += 1
        return nodes

    def _pass(
        self, wanted: Items[tuple[int, int, Tensor, int]], nodes: Items[_Node]
    ) -> list[tuple[GuessedTokens, list[list[int]]]]:
        """Return these nodes for each newest token, which was chosen from a row of hidden states.

        Of `wanted`, each is a place, the token, the states and the row. Beside the nodes, the candidates of
        each head; both are empty where a logit is not finite.
        """
        hidden = torch.stack([states[row] for _, _, states, row in wanted])
        newest = torch.tensor([token_id for _, token_id, _, _ in wanted], device=hidden.device)
        count = 1 + max([node.head for node in nodes])
        parents = tuple([node.parent for node in nodes])
        shape = (-1, count, self._num_candidates)
        guesses: list[tuple[GuessedTokens, list[list[int]]]] = []
        for rows, token_ids in zip(
            *(torch.split(one, self._at_once) for one in (hidden, newest)), strict=True
        ):
            states = self._heads.states(rows, self._model.embedded(token_ids), count)
            logits = self._model.logits(states.flatten(0, 1)).float()
            found, sure = (one.view(shape).tolist() for one in likeliest(logits, self._num_candidates))
            for candidates, shares in zip(found, sure, strict=True):
                if any(ranks[-1] < 0 for ranks in candidates):
                    guesses.append((NO_GUESS, []))
                    continue
                own = tuple([shares[node.head][node.rank] for node in nodes])
                guess = GuessedTokens(
                    tuple([candidates[node.head][node.rank] for node in nodes]),
                    tuple(
                        [
                            (SOURCE, (node.head, node.rank, min(int(share * LEVELS), LEVELS - 1)))
                            for node, share in zip(nodes, own, strict=True)
                        ]
                    ),
                    parents,
                    own,
                )
                guesses.append((guess, candidates))
        return guesses
