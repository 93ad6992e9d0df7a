"""What an Engine is built from."""

from dataclasses import dataclass
from pathlib import Path

from worker.engine.admission import POLICIES
from worker.engine.batch_policy import BatchPolicy
from worker.engine.errors import ConfigError

DTYPES = ("f32", "bf16", "int8")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's checkpoint, device and limits; raises ConfigError for what cannot be honoured."""

    model: Path
    device: str = "cpu"
    # int8: weights and activations of products; the KV cache is bf16, the rest float32.
    dtype: str = "bf16"
    block_size: int = 16  # tokens in a Block
    # None: as many as max_num_sequences can use, within kv_cache_bytes.
    num_blocks: int | None = None
    kv_cache_bytes: int = 1 << 30
    max_num_sequences: int = 64
    # On a CPU more would not run faster, and what passes between products would leave the cache.
    max_tokens_per_step: int = 512
    # None: the checkpoint's, or what the KV cache can hold when that is less.
    max_model_len: int | None = None
    # None: torch's own choice.
    num_threads: int | None = None
    enable_prefix_cache: bool = True
    admission: str = "length-aware"  # which waiting Sequence goes next: worker/engine/admission
    batch_policy: BatchPolicy = BatchPolicy()  # of work that generates nothing

    def __post_init__(self) -> None:
        if self.device != "cpu":
            raise ConfigError(f"device {self.device!r} is not built yet: only 'cpu' is")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.admission not in POLICIES:
            raise ConfigError(f"admission {self.admission!r} is none of {', '.join(POLICIES)}")
        for name in (
            "block_size",
            "num_blocks",
            "kv_cache_bytes",
            "max_num_sequences",
            "max_tokens_per_step",
            "max_model_len",
            "num_threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.max_tokens_per_step < self.max_num_sequences:
            raise ConfigError(
                f"max_tokens_per_step ({self.max_tokens_per_step}) must be at least "
                f"max_num_sequences ({self.max_num_sequences}): each running Sequence takes one token a Step"
            )
