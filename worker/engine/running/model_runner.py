"""Owns the device's weights and KV cache, and turns StepPlans into chosen tokens."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Sequences
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.kv_write import move_slots
from kernels.paged_attention.tree import MAX_TREE_ROWS
from worker.cores import last_cache_bytes, usable_cores
from worker.engine.choosing.chosen_tokens import Chosen, ChosenTokens, TokensOnDevice, on_host
from worker.engine.choosing.logit_rules import apply_rules
from worker.engine.choosing.row_reader import read_rows
from worker.engine.choosing.sampler import (
    SamplingInput,
    build_sampling_input,
    sample,
    sample_on_device,
    token_logprobs,
)
from worker.engine.choosing.verification import right_rows
from worker.engine.models.checkpoint import Weights
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.models.products import EightBits
from worker.engine.models.registry import Architecture, LoadedModel, read_architecture
from worker.engine.requests.config import CPU_KV_CACHE_BYTES, EngineConfig
from worker.engine.requests.errors import OutOfMemoryError
from worker.engine.requests.stats import ModelInfo
from worker.engine.running.cpu_placement import CpuPlacement
from worker.engine.running.device import is_out_of_memory, open_device
from worker.engine.running.free_cores import FreeCores
from worker.engine.running.heap import small_heap
from worker.engine.running.input_builder import InputBuilder, PackedStep
from worker.engine.running.kv_cache import allocate_kv_cache, longest_sequence, size_kv_cache
from worker.engine.running.medusa_guesses import MedusaGuesses
from worker.engine.scheduling.plan import StepPlan
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence
from worker.values.logprobs import TokenLogprob

if TYPE_CHECKING:
    from worker.engine.running.gpu import GpuSteps

# The torch dtype of activations and the KV cache, by the configured dtype.
TORCH_DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.bfloat16,
    "fp8": torch.bfloat16,
}
EIGHT_BITS: dict[str, EightBits] = {"int8": "int8", "fp8": "fp8"}
# The least Sequences of a Step that runs beside others and reads the weights from memory. With fewer, reading
# takes longer than computing, and all threads together read only once (docs/decisions/0053).
ROWS_WORTH_READING = 16


class ModelRunner:
    """Loads a checkpoint and runs Steps on it; the thread that built it must call `execute`."""

    _gpu: "GpuSteps | None" = None
    num_padding = 0  # padding rows of the last Step
    # Tokens that the previous Step chose, if they are still on the device.
    _before: TokensOnDevice | None = None

    def __init__(self, config: EngineConfig) -> None:
        self._cores: FreeCores | None = None
        if config.device == "cpu":
            torch.set_num_threads(config.num_threads or min(torch.get_num_threads(), usable_cores()))
            self._cores = FreeCores(torch.get_num_threads())
        self.device, dtype = open_device(config), TORCH_DTYPES[config.dtype]
        architecture = read_architecture(config.model)
        max_bytes = _kv_cache_bytes(config)
        size = None if max_bytes is None else size_kv_cache(config, architecture, dtype, max_bytes)
        longest = longest_sequence(config, architecture) if size is None else size.max_model_len
        with torch.inference_mode():
            weights = Weights(
                config.model,
                dtype,
                device=self.device,
                is_gpu=config.device == "cuda",
                eight_bits=EIGHT_BITS.get(config.dtype),
            )
            with small_heap(), weights:
                self._model = architecture.load(weights, longest)
            if size is None:
                from worker.engine.running.gpu import measured_kv_cache_size  # noqa: PLC0415  (it needs Triton)

                size = measured_kv_cache_size(
                    config, architecture, self._model, dtype, self.device, max_model_len=longest
                )
            self._kv_cache = allocate_kv_cache(config, architecture, size.num_blocks, dtype, self.device)
            self.medusa = _medusa(config, self._model, architecture, weights.activation_dtype, self.device)
            if config.device == "cuda":
                self._gpu = self._gpu_steps(config, architecture, dtype, size.max_model_len)
        self._placement = CpuPlacement(
            block_size=config.block_size,
            group=architecture.num_heads // architecture.num_kv_heads,
            head_dim=architecture.head_dim,
        )
        self.steps_at_once = self._most_steps_at_once(config)
        self.least_rows_beside = 0
        if weights.num_bytes > last_cache_bytes():
            self.least_rows_beside = min(ROWS_WORTH_READING, config.max_num_sequences)
        self._input_builder = InputBuilder(
            max_num_sequences=config.max_num_sequences * self.steps_at_once,
            max_blocks_per_sequence=-(-size.max_model_len // config.block_size),
            block_size=config.block_size,
        )
        self.model_info = ModelInfo(
            name=config.model.resolve().name,
            architecture=architecture.name,
            dtype=config.dtype,
            device=config.device,
            max_model_len=size.max_model_len,
            num_parameters=weights.num_parameters,
            vocab_size=architecture.vocab_size,
            hidden_size=architecture.hidden_size,
            num_blocks=size.num_blocks,
            block_size=config.block_size,
            kv_cache_bytes=size.num_blocks * size.block_bytes,
            weight_bytes=weights.num_bytes,
            weight_formats=dict(weights.formats),
        )

    def _gpu_steps(
        self, config: EngineConfig, architecture: Architecture, dtype: torch.dtype, max_model_len: int
    ) -> "GpuSteps":
        from worker.engine.running.gpu import GpuSteps  # noqa: PLC0415  (it needs Triton)

        return GpuSteps(
            config,
            architecture,
            self._model,
            self._kv_cache,
            dtype,
            self.device,
            max_model_len,
            has_trees=self.medusa is not None,
        )

    @property
    def is_one_region(self) -> bool:
        """Whether nearly all of a Step is one parallel region, which holds no lock of Python."""
        return self._cores is not None and self._model.is_one_region

    def _most_steps_at_once(self, config: EngineConfig) -> int:
        """Return into how many Steps the threads of a CPU divide without a rest, if Steps can be divided."""
        can_divide = (
            self.is_one_region
            and not config.speculates
            and config.latency_target_seconds is None
            and config.batch_policy.name == "continuous"
        )
        num_threads = 1 if self._cores is None else self._cores.most
        return next((count for count in (2, 3) if can_divide and num_threads % count == 0), 1)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> Chosen:
        """Start a Step and return each sampled Sequence's next token.

        On a GPU the tokens arrive later, and the next Step may start before they have arrived, unless the
        host has to see the logits.

        Raises:
            OutOfMemoryError: the Step was too large. Everything computed before it is kept.

        """
        with _memory_watched():
            return self._execute(plan)

    @torch.inference_mode()
    def execute_beside(self, plan: StepPlan, count: int, outside: AbstractContextManager[None]) -> Chosen:
        """Do as `execute` on a CPU, for one of `count` Steps that run at once, on its share of the threads.

        Another thread may call it while the model runs, which is done in the context `outside`.
        """
        with _memory_watched():
            if self._cores is not None:
                self._cores.adapt(count)
            step = self._input_builder.build(plan, None)
            placed = self._placement.place(step)
            with outside:
                hidden = self._read_rows(step, self._model.forward(placed, self._kv_cache))
                return kept(step, self._choose_on_cpu(hidden, step) if step.sampled else [])

    def rest(self) -> None:
        """Record that there is no work."""
        if self._cores is not None:
            self._cores.rest()

    def _execute(self, plan: StepPlan) -> Chosen:
        if self._cores is not None:
            self._cores.adapt()
        step = self._input_builder.build(plan, self._before)
        chosen = self._choose(step)
        # Nothing can fail after this line, so a Step that ran out of memory has changed nothing.
        self._before = chosen if isinstance(chosen, TokensOnDevice) else None
        return chosen

    def _choose(self, step: PackedStep) -> Chosen:
        chosen: Chosen
        if self._gpu is None:
            outputs = self._model.forward(self._placement.place(step), self._kv_cache)
            hidden = self._read_rows(step, outputs)
            chosen = self._keep(step, self._choose_on_cpu(hidden, step) if step.sampled else [])
        else:
            hidden, logits = self._run_on_gpu(step)
            if logits is None:
                chosen = ChosenTokens((), [], [])
            elif any(one.has_logit_rules or one.needs_logprobs for one in step.sampled):
                chosen = self._keep(step, _choose_on_host(logits, step.sampled, step.ahead, step.sampling))
            else:
                tokens = sample_on_device(logits, step.sampling)
                is_late = not step.ahead  # which guesses are right has to be known before the next Step
                chosen = (
                    TokensOnDevice(step.sampled, tokens) if is_late else self._keep(step, on_host(tokens))
                )
        if self.medusa is not None:
            self.medusa.chose(chosen, hidden)
        return chosen

    def _keep(self, step: PackedStep, tokens: Sequences[NextToken]) -> ChosenTokens:
        """Return what the Sequences keep of the tokens chosen; of trees, only this stays in their Slots."""
        chosen = kept(step, tokens)
        if step.hidden is not None and (moves := moves_of(step, chosen.rows)):
            sources, targets = torch.tensor(moves, device=self.device).T
            for cache in self._kv_cache:
                move_slots(cache, sources, targets)
        return chosen

    def _run_on_gpu(self, step: PackedStep) -> tuple[Tensor, Tensor | None]:
        """Run the model; return hidden states and logits of the sampled rows, no logits without such a row.

        Only the hidden states stay valid after the next Step.
        """
        assert self._gpu is not None  # noqa: S101
        before = None if self._before is None else self._before.device
        outputs, logits = self._gpu.outputs(step, before)
        self.num_padding = self._gpu.num_padding
        hidden = self._read_rows(step, outputs)
        if logits is None and step.sampled:
            logits = self._model.logits(hidden)
        return hidden if self.medusa is None else hidden.clone(), logits

    def _read_rows(self, step: PackedStep, hidden: Tensor) -> Tensor:
        """Pass rows of hidden states to readouts; return those of the sampled rows, which come first."""
        if not step.spans:
            return hidden
        count = len(step.sampled)
        read_rows(hidden[count:], step.spans, self._model.logits, self.model_info.vocab_size)
        return hidden[:count]

    def _choose_on_cpu(self, hidden: Tensor, step: PackedStep) -> list[NextToken]:
        """Return the next token of each row; logits are written only of rows that need them."""
        needs_logits = [
            not one.is_greedy or one.has_logit_rules or one.needs_logprobs for one in step.sampled
        ]
        others = [row for row, needs in enumerate(needs_logits) if needs]
        rows = [row for row, needs in enumerate(needs_logits) if not needs]
        likeliest = self._model.likeliest(hidden[rows] if others else hidden) if rows else None
        if likeliest is None:
            return _choose_on_host(self._model.logits(hidden), step.sampled, step.ahead, step.sampling)
        greedy = [NextToken(token if token >= 0 else None) for token in likeliest.tolist()]
        if not others:
            return greedy
        sequences = [step.sampled[row] for row in others]
        logits = self._model.logits(hidden[others])
        ahead = [step.ahead[row] for row in others] if step.ahead else ()
        sampling = build_sampling_input(sequences, ahead)
        chosen, found = iter(_choose_on_host(logits, sequences, ahead, sampling)), iter(greedy)
        return [next(chosen if needs else found) for needs in needs_logits]


@contextmanager
def _memory_watched() -> Iterator[None]:
    """Raise OutOfMemoryError for an error that says so."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(str(error).splitlines()[0] if str(error) else "out of memory") from error


def _kv_cache_bytes(config: EngineConfig) -> int | None:
    """Return the most bytes of keys and values; None: as many as a GPU has left."""
    if config.kv_cache_bytes is None and (config.device == "cpu" or config.num_blocks is not None):
        return CPU_KV_CACHE_BYTES
    return config.kv_cache_bytes


def _medusa(
    config: EngineConfig,
    model: LoadedModel,
    architecture: Architecture,
    dtype: torch.dtype,
    device: torch.device,
) -> MedusaGuesses | None:
    """Return what guesses with the heads beside the checkpoint; None without any, or without guesses.

    There are none on a GPU for windows that are shorter than a tree may be wide, which attention refuses.
    """
    is_gpu = config.device == "cuda"
    if not config.speculates or (
        is_gpu and min(filter(None, architecture.windows), default=MAX_TREE_ROWS) < MAX_TREE_ROWS
    ):
        return None
    heads = MedusaHeads.load(config.model, architecture.hidden_size, dtype, device)
    if heads is None:
        return None
    if config.dtype == "int8" and not is_gpu:
        heads.quantize()
    return MedusaGuesses(model, heads, architecture.vocab_size)


def _choose_on_host(
    logits: Tensor,
    sequences: Sequences[Sequence],
    ahead: Sequences[tuple[int, ...]],
    sampling: SamplingInput | None,
) -> list[NextToken]:
    """Return the next token of each row, with its logprob if the row's Sequence asks for it.

    A row whose largest logit is NaN or infinite gets None.
    """
    is_sound = [math.isfinite(logit) for logit in logits.amax(dim=-1).tolist()]
    if not all(is_sound):
        bad = torch.tensor([not sound for sound in is_sound], device=logits.device)
        logits = logits.masked_fill(bad.unsqueeze(1), 0.0)
    asking = [row for row, sequence in enumerate(sequences) if sequence.needs_logprobs]
    # Copied, because rules change logits in place.
    own_logits = logits[torch.tensor(asking, device=logits.device)] if asking else None
    tokens: list[int | None] = list(sample(apply_rules(logits, sequences, ahead), sampling))
    logprobs: dict[int, TokenLogprob] = {}  # by row
    if own_logits is not None:
        counts = [sequences[row].params.logprobs or 0 for row in asking]
        found = token_logprobs(own_logits, [tokens[row] or 0 for row in asking], counts)
        logprobs = dict(zip(asking, found, strict=True))
    return [
        NextToken(token if sound else None, logprobs.get(row))
        for row, (token, sound) in enumerate(zip(tokens, is_sound, strict=True))
    ]


def kept(step: PackedStep, tokens: Sequences[NextToken]) -> ChosenTokens:
    """Return what each Sequence keeps of the tokens that were chosen after its known ones and its guesses."""
    if not step.ahead:
        return ChosenTokens(
            step.sampled, [(token,) for token in tokens], [[row] for row in range(len(tokens))]
        )
    rows = right_rows(step.ahead, [token.token_id for token in tokens])
    return ChosenTokens(
        tuple(step.sampled[first] for first, *_ in rows),
        [tuple(tokens[row] for row in own) for own in rows],
        rows,
    )


def moves_of(step: PackedStep, rows: Sequences[Sequences[int]]) -> list[tuple[int, int]]:
    """Return where what was kept of each tree is, and where it belongs: pairs of Slots, for moves at once.

    `rows` are those of the Step's logits that each Sequence keeps. They move behind the first one, in order.
    """
    slots = (step.slots if step.output_rows is None else step.slots[step.output_rows]).tolist()
    return [
        (slots[row], slots[first + depth])
        for first, *others in rows
        for depth, row in enumerate(others, 1)
        if row != first + depth
    ]
