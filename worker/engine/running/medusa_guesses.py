"""Guesses with a model's Medusa heads, from the hidden states that chose the newest tokens."""

import time
from collections import deque
from collections.abc import Sequence as Items
from statistics import median

import torch
from torch import Tensor

from worker.engine.choosing.chosen_tokens import ChosenTokens
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.models.registry import LoadedModel
from worker.engine.running.device import is_out_of_memory
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.proposer import NO_GUESS, GuessedTokens

SOURCE = "medusa"
LEVELS = 8  # of a head's own probability; tokens of one head and level are right about equally often
REMEMBERED_PASSES = 9
REMEMBERED = 64.0  # guesses; older ones fade
FIRST, WEIGHT = 0.5, 4.0  # the share of right ones before any, and how many guesses that counts as
MAX_LOGITS = 1 << 24  # computed at once


class MedusaGuesses:
    """Proposes each head's likeliest token, as a chain.

    The heads have no cache: a guess needs only the hidden state of the newest token's row, which
    `chose` keeps.
    """

    def __init__(self, model: LoadedModel, heads: MedusaHeads, vocab_size: int) -> None:
        self._model, self._heads = model, heads
        self._at_once = max(1, MAX_LOGITS // (vocab_size * heads.num_heads))  # Sequences
        self._states: dict[Sequence, tuple[Tensor, int]] = {}  # hidden states of a Step, and the row
        self._guessed: dict[Sequence, tuple[int, ...]] = {}  # since the last Step
        self._tried, self._right = [0.0] * heads.num_heads, [0.0] * heads.num_heads
        self._passes: deque[float] = deque(maxlen=REMEMBERED_PASSES)  # seconds

    @property
    def seconds_per_pass(self) -> float:
        """Median time of guessing for every Sequence, however many tokens; 0 before the first."""
        return median(self._passes) if self._passes else 0.0

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of guesses of which so many tokens are right, for each number of tokens."""
        shares: list[float] = []
        all_right = 1.0
        for tried, right in zip(self._tried, self._right, strict=True):
            all_right *= (right + WEIGHT * FIRST) / (tried + WEIGHT)
            shares.append(all_right)
        return tuple(shares)

    def chose(self, chosen: ChosenTokens, ahead: Items[tuple[int, ...]], hidden: Tensor) -> None:
        """Keep a Step's hidden states [num_rows, hidden_size], and learn which guesses were right.

        `ahead` is the PackedStep's.
        """
        firsts = [row for row, guesses in enumerate(ahead) if not guesses] or range(len(hidden))
        for sequence, first, tokens in zip(chosen.sequences, firsts, chosen.host, strict=True):
            self._states[sequence] = hidden, first + len(tokens) - 1
            guess = self._guessed.get(sequence, ())
            for place, (guessed, token) in enumerate(zip(guess, tokens, strict=False)):
                is_right = guessed == token.token_id
                fade = min(1.0, REMEMBERED / (self._tried[place] + 1))
                self._tried[place] = fade * (self._tried[place] + 1)
                self._right[place] = fade * (self._right[place] + is_right)
                if not is_right:
                    break
        self._guessed.clear()

    @torch.inference_mode()
    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; out of memory, there is none."""
        if len(self._states) > 2 * len(sequences) + 64:  # some were cancelled
            self._states = {
                one: kept for one, kept in self._states.items() if one.state is not SequenceState.FINISHED
            }
        guesses = [NO_GUESS] * len(sequences)
        wanted = [
            (place, one.token_ids[-1], *self._states[one])
            for place, (one, limit) in enumerate(zip(sequences, limits, strict=True))
            if limit > 0 and one in self._states
        ]
        if not wanted:
            return guesses
        count = min(max(limits), self._heads.num_heads)
        began = time.perf_counter()
        try:
            hidden = torch.stack([states[row] for _, _, states, row in wanted])
            found = self._guess(hidden, torch.tensor([token_id for _, token_id, _, _ in wanted]), count)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return guesses
        self._passes.append(time.perf_counter() - began)
        for (place, *_), guess in zip(wanted, found, strict=True):
            guesses[place] = guess.first(limits[place])
            self._guessed[sequences[place]] = guesses[place].token_ids
        return guesses

    def ended(self, sequence: Sequence) -> None:
        """Forget the Sequence."""
        self._states.pop(sequence, None)

    def _guess(self, hidden: Tensor, newest: Tensor, count: int) -> list[GuessedTokens]:
        """Return `count` tokens for each row of hidden states and the newest token, chosen from it."""
        guesses: list[GuessedTokens] = []
        for rows, token_ids in zip(
            *(torch.split(one, self._at_once) for one in (hidden, newest)), strict=True
        ):
            states = self._heads.states(rows, self._model.embedded(token_ids), count)
            logits = self._model.logits(states.flatten(0, 1)).float()
            largest, likeliest = logits.max(dim=-1)
            sure = (largest - logits.logsumexp(dim=-1)).exp().nan_to_num(0.0)
            levels = (sure * LEVELS).long().clamp(max=LEVELS - 1).view(-1, count).tolist()
            guesses += [
                GuessedTokens(tuple(tokens), tuple((SOURCE, place) for place in enumerate(level)))
                for tokens, level in zip(likeliest.view(-1, count).tolist(), levels, strict=True)
            ]
        return guesses
