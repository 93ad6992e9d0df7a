"""Owns the device: weights, KV cache, and the way from a StepPlan to chosen tokens."""

import torch

from kernels import int8_linear
from kernels.kv_write import LayerCache
from worker.engine.config import EngineConfig
from worker.engine.errors import ConfigError
from worker.engine.input_builder import InputBuilder
from worker.engine.kv_cache import size_kv_cache
from worker.engine.logit_rules import apply_rules
from worker.engine.models.checkpoint import Weights
from worker.engine.models.registry import read_architecture
from worker.engine.row_reader import read_rows
from worker.engine.sampler import sample, token_logprobs
from worker.engine.sequence import Sequence
from worker.engine.step import ModelInfo, StepPlan

# Of activations and the KV cache.
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}


class ModelRunner:
    """Loads a checkpoint and runs Steps on it, on the thread that made it."""

    def __init__(self, config: EngineConfig) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        is_int8 = config.dtype == "int8"
        if is_int8 and not int8_linear.is_available():
            raise ConfigError("dtype int8 needs a torch with oneDNN: use bf16 or f32")
        dtype = TORCH_DTYPES[config.dtype]
        architecture = read_architecture(config.model)
        size = size_kv_cache(config, architecture, dtype)
        with torch.inference_mode():
            with Weights(config.model, dtype, is_int8=is_int8) as weights:
                self._model = architecture.load(weights, size.max_model_len)
            self._kv_cache = [
                LayerCache.allocate(
                    size.num_blocks,
                    architecture.num_kv_heads,
                    config.block_size,
                    architecture.head_dim,
                    dtype,
                )
                for _ in range(architecture.num_layers)
            ]
        self._input_builder = InputBuilder(
            max_num_sequences=config.max_num_sequences,
            max_blocks_per_sequence=-(-size.max_model_len // config.block_size),
            block_size=config.block_size,
            group=architecture.num_heads // architecture.num_kv_heads,
            head_dim=architecture.head_dim,
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
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[tuple[Sequence, int]]:
        """Run a Step and return each sampled Sequence with its next token."""
        step = self._input_builder.build(plan)
        hidden = self._model.forward(step, self._kv_cache)
        if step.spans:
            count = len(step.sampled)
            read_rows(hidden[count:], step.spans, self._model.logits, self.model_info.vocab_size)
            hidden = hidden[:count]
        if not step.sampled:
            return []
        logits = self._model.logits(hidden)
        asking = [row for row, sequence in enumerate(step.sampled) if sequence.needs_logprobs]
        own_logits = logits[torch.tensor(asking)] if asking else None  # a copy: rules change theirs in place
        tokens = sample(apply_rules(logits, step.sampled), step.sampling)
        if own_logits is not None:
            counts = [step.sampled[row].params.logprobs or 0 for row in asking]
            found = token_logprobs(own_logits, [tokens[row] for row in asking], counts)
            for row, one in zip(asking, found, strict=True):
                step.sampled[row].logprobs.append(one)
        return list(zip(step.sampled, tokens, strict=True))
