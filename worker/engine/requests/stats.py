"""Defines the engine's counters and the description of its loaded model."""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built."""

    steps: int = 0
    prefill_tokens: int = 0  # prompt tokens run through the model for the first time
    decode_tokens: int = 0  # tokens generated
    recomputed_tokens: int = 0  # run through the model again after a preemption
    queried_tokens: int = 0  # prompt tokens looked up in the prefix cache
    cached_tokens: int = 0  # of the queried tokens, those found there
    evictions: int = 0  # cached Blocks reused for other tokens
    preemptions: int = 0
    shrunk_steps: int = 0  # Steps that ran out of memory and were repeated as smaller ones
    limit_cuts: int = 0  # changes of the limits of Steps for a latency target
    limit_raises: int = 0
    resumed_tokens: int = 0  # of preempted Sequences, found in the prefix cache at readmission
    computed_tokens: int = 0  # rows run through the model for a Sequence
    padding_tokens: int = 0  # rows run through the model to pad a Step
    lookup_guessed_tokens: int = 0  # guessed from equal tokens before them, and verified
    lookup_right_tokens: int = 0  # of these, the right ones
    grammar_guessed_tokens: int = 0  # guessed as a grammar leaves no other text, and verified
    grammar_right_tokens: int = 0
    draft_guessed_tokens: int = 0  # guessed by the draft model, and verified
    draft_right_tokens: int = 0
    medusa_guessed_tokens: int = 0  # guessed by Medusa heads, and verified
    medusa_right_tokens: int = 0
    scheduled_sequences: int = 0  # summed over Steps
    sequence_rows: int = 0  # the most Sequences a Step could hold, summed over Steps
    kv_used_block_steps: int = 0  # Blocks that Sequences held, summed over Steps
    kv_block_steps: int = 0  # Blocks, summed over Steps
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    padding_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockUse:
    """Use of the KV cache's Blocks now."""

    num_blocks: int
    num_used: int  # held by Sequences
    num_cached: int  # found by the prefix cache, held or not


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Description of the loaded model and the limits it runs under."""

    name: str
    architecture: str
    dtype: str
    device: str
    max_model_len: int  # tokens, prompt and output
    num_parameters: int
    vocab_size: int
    hidden_size: int
    num_blocks: int
    block_size: int
    kv_cache_bytes: int
    weight_bytes: int
    weight_formats: dict[str, int]  # the parameters of matrix products by the format they are held in

    @property
    def quantization(self) -> str:
        """The format in which most parameters of matrix products are held, such as int8 or f32."""
        return max(self.weight_formats, key=self.weight_formats.__getitem__, default=self.dtype)
