"""Guesses with a smaller model of the same tokenizer, by the Sequence's own random numbers.

Its keys and values are in the same Blocks as those of the model that verifies: each Block of the pool has
memory in both caches, so a Sequence's BlockTable serves both.
"""

import time
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch

from worker.engine.choosing.sampler import sample
from worker.engine.models.checkpoint import Weights
from worker.engine.models.registry import read_architecture
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError
from worker.engine.requests.stats import ModelInfo
from worker.engine.running.cpu_placement import CpuPlacement
from worker.engine.running.device import is_out_of_memory
from worker.engine.running.heap import small_heap
from worker.engine.running.input_builder import InputBuilder
from worker.engine.running.kv_cache import allocate_kv_cache
from worker.engine.running.model_runner import EIGHT_BITS, TORCH_DTYPES
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation.proposer import DRAFT, NO_GUESS, GuessedTokens
from worker.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from worker.engine.running.gpu import GpuSteps

REMEMBERED_PASSES = 9


@dataclass(slots=True)
class _Progress:
    """What the draft's cache holds of a Sequence: `num_known` tokens of it, then `guesses`."""

    block_table: list[int]  # a new one at each admission, which starts anew
    num_known: int = 0
    guesses: tuple[int, ...] = ()

    def num_right(self, token_ids: Items[int]) -> int:
        """Return how many of the tokens it holds the Sequence has now, without its newest one."""
        count = self.num_known
        for guess in self.guesses:
            if count >= len(token_ids) or token_ids[count] != guess:
                break
            count += 1
        return min(count, len(token_ids) - 1)


class DraftModel:
    """Proposes what a smaller checkpoint would go on with; raises ConfigError if it does not fit the model.

    A prompt is caught up with in as many Steps as `max_tokens_per_step` asks for; until then there is no
    guess for it.
    """

    shares = None
    _gpu: "GpuSteps | None" = None

    def __init__(self, config: EngineConfig, directory: Path, info: ModelInfo, device: torch.device) -> None:
        architecture = read_architecture(directory)
        own, other = Tokenizer(directory), Tokenizer(config.model)
        if own.vocabulary != other.vocabulary or architecture.vocab_size != info.vocab_size:
            raise ConfigError(f"draft_model: the tokenizer of {directory} is not that of {config.model}")
        self.max_model_len = min(info.max_model_len, architecture.max_position)
        dtype, is_gpu = TORCH_DTYPES[config.dtype], config.device == "cuda"
        eight_bits = EIGHT_BITS.get(config.dtype)
        with torch.inference_mode():
            weights = Weights(directory, dtype, device=device, is_gpu=is_gpu, eight_bits=eight_bits)
            with small_heap(), weights:
                # Angles for the model's own length: a GPU's first Steps, which compile, run as far.
                self._model = architecture.load(weights, info.max_model_len)
            self._kv_cache = allocate_kv_cache(config, architecture, info.num_blocks, dtype, device)
            if is_gpu:
                from worker.engine.running.gpu import GpuSteps  # noqa: PLC0415  (it needs Triton)

                self._gpu = GpuSteps(
                    config, architecture, self._model, self._kv_cache, dtype, device, info.max_model_len
                )
        self._placement = CpuPlacement(
            block_size=config.block_size,
            group=architecture.num_heads // architecture.num_kv_heads,
            head_dim=architecture.head_dim,
        )
        self._builder = InputBuilder(
            max_num_sequences=config.max_num_sequences,
            max_blocks_per_sequence=-(-info.max_model_len // config.block_size),
            block_size=config.block_size,
        )
        self._max_tokens = config.max_tokens_per_step
        self._progress: dict[Sequence, _Progress] = {}
        self._passes: deque[float] = deque(maxlen=REMEMBERED_PASSES)  # seconds
        self.seconds_per_pass = 0.0  # their median: of one more guess for every Sequence; 0 before the first

    @torch.inference_mode()
    def propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        """Return a guess for each Sequence, of at most so many tokens; none for one that is not caught up.

        The Sequences hold Blocks for their tokens and for as many guesses. Out of memory, there is none.
        """
        if len(self._progress) > 2 * len(sequences) + 64:  # some were cancelled
            self._progress = {
                one: kept for one, kept in self._progress.items() if one.state is not SequenceState.FINISHED
            }
        try:
            return self._propose(sequences, limits)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._progress.clear()
            return [NO_GUESS] * len(sequences)

    def ended(self, sequence: Sequence) -> None:
        """Forget the Sequence."""
        self._progress.pop(sequence, None)

    def _propose(self, sequences: Items[Sequence], limits: Items[int]) -> list[GuessedTokens]:
        room = self._max_tokens
        entries: list[ScheduledSequence] = []
        wanted: dict[Sequence, tuple[int, int]] = {}  # by copy: the Sequence's place, and its limit
        for place, (sequence, limit) in enumerate(zip(sequences, limits, strict=True)):
            limit = min(limit, self.max_model_len - len(sequence.token_ids))  # noqa: PLW2901
            progress = self._progress.get(sequence)
            if progress is None or progress.block_table is not sequence.block_table:
                progress = self._progress[sequence] = _Progress(sequence.block_table)
            start = progress.num_right(sequence.token_ids)
            num_tokens = min(len(sequence.token_ids) - start, room)
            if limit <= 0 or not num_tokens:
                continue
            room -= num_tokens
            # A copy grows by the guesses, and its draws are those of the Sequence at the same positions.
            copy = replace(sequence, token_ids=list(sequence.token_ids), readout=None)
            is_last = start + num_tokens == len(sequence.token_ids)
            entries.append(ScheduledSequence(copy, start, num_tokens, is_sampled=is_last))
            progress.num_known, progress.guesses = start + num_tokens, ()
            if is_last:
                wanted[copy] = place, limit
        guesses = [NO_GUESS] * len(sequences)
        running = self._run(entries)
        while running:
            next_entries = []
            for copy in running:
                place, limit = wanted[copy]
                token_ids = (*guesses[place].token_ids, copy.token_ids[-1])
                guesses[place] = GuessedTokens(token_ids, (DRAFT,) * len(token_ids))
                if len(token_ids) < limit:
                    start = len(copy.token_ids) - 1
                    next_entries.append(ScheduledSequence(copy, start, 1, is_sampled=True))
                    self._progress[sequences[place]].guesses = token_ids
            running = self._run(next_entries)
        return guesses

    def _run(self, entries: Items[ScheduledSequence]) -> tuple[Sequence, ...]:
        """Run a Step of the draft; append a token to each Sequence at its end, and return these."""
        if not entries:
            return ()
        began = time.perf_counter()
        step = self._builder.build(StepPlan(tuple(entries)), None)
        logits = None
        if self._gpu is None:
            hidden = self._model.forward(self._placement.place(step), self._kv_cache)
        else:
            hidden, logits = self._gpu.outputs(step, None)
        if step.sampled:
            tokens = sample(self._model.logits(hidden) if logits is None else logits, step.sampling)
            for sequence, token_id in zip(step.sampled, tokens, strict=True):
                sequence.token_ids.append(token_id)
        if all(entry.num_tokens == 1 for entry in entries):
            self._passes.append(time.perf_counter() - began)
            self.seconds_per_pass = median(self._passes)
        return step.sampled
