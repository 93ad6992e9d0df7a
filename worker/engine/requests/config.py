"""Defines the configuration of an Engine and its defaults for each device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.requests.errors import ConfigError
from worker.values.kv_formats import default_kv_format

DEVICES = ("cpu", "cuda")
DTYPES = ("f32", "bf16", "int8", "fp8")
KV_CACHE_DTYPES = ("plain", "int8", "fp8")
ADMISSIONS = ("fifo", "length-aware")
CPU_KV_CACHE_BYTES = 1 << 30
# Defaults of max_num_sequences and max_tokens_per_step. On a CPU, larger Steps would not run faster and their
# activations would no longer fit the CPU's cache; on a GPU, smaller Steps would leave it idle. The GPU's are
# not measured yet.
LIMITS_BY_DEVICE = {"cpu": (64, 512), "cuda": (256, 8192)}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an Engine: checkpoint, device and limits; raises ConfigError for an invalid field.

    Use `EngineConfig(model=path)`, or `EngineConfig.for_device("cuda", model=path)` for a GPU's defaults.
    """

    model: Path
    device: str = "cpu"
    # int8, and on a GPU fp8, apply to the weights and activations of matrix products; the rest is then
    # float32 on a CPU and bf16 on a GPU.
    dtype: str = "bf16"
    # plain: `dtype`, and bf16 where that has 8 bits. int8 and fp8 keep one scale per token and head; fp8
    # needs a GPU. None: int8 on a CPU unless `dtype` is f32, else plain.
    kv_cache_dtype: str | None = None
    block_size: int = 16  # tokens in a Block
    # None: as many as max_num_sequences Sequences can use, within kv_cache_bytes.
    num_blocks: int | None = None
    # None: 1 GiB on a CPU; on a GPU the memory that weights and the largest Step leave free.
    kv_cache_bytes: int | None = None
    max_num_sequences: int = LIMITS_BY_DEVICE["cpu"][0]
    max_tokens_per_step: int = LIMITS_BY_DEVICE["cpu"][1]
    # None: the checkpoint's limit, or the capacity of the KV cache if that is less.
    max_model_len: int | None = None
    # At most so many on a CPU, fewer while other programs use its cores. None: torch's default.
    num_threads: int | None = None
    enable_prefix_cache: bool = True
    shares_prefixes: bool = False  # True: groups share cached prefixes, so cache hits reveal others' prompts
    speculates: bool = False  # verifies guessed tokens where that saves time; outputs do not depend on it
    # A smaller checkpoint with the same tokenizer, whose guesses are verified too; None: there is none.
    draft_model: Path | None = None
    admission: str = "length-aware"  # policy of worker/engine/scheduling/admission
    batch_policy: BatchPolicy = BatchPolicy()
    # Mean time of requests in the engine that the limits of Steps are moved for; None: they stay.
    latency_target_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.kv_cache_dtype not in {None, *KV_CACHE_DTYPES}:
            raise ConfigError(
                f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, not {self.kv_cache_dtype!r}"
            )
        if self.admission not in ADMISSIONS:
            raise ConfigError(f"admission must be one of {', '.join(ADMISSIONS)}, not {self.admission!r}")
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
        if self.latency_target_seconds is not None and not 0 < self.latency_target_seconds < float("inf"):
            raise ConfigError(f"latency_target_seconds must be positive, not {self.latency_target_seconds}")
        if self.max_tokens_per_step < self.max_num_sequences:
            raise ConfigError(
                f"max_tokens_per_step ({self.max_tokens_per_step}) must be at least "
                f"max_num_sequences ({self.max_num_sequences}): each running Sequence takes one token a Step"
            )

    @property
    def kv_format(self) -> str:
        """How keys and values are stored: plain, int8 or fp8."""
        return self.kv_cache_dtype or default_kv_format(self.device, self.dtype)

    @classmethod
    def for_device(
        cls,
        device: str,
        *,
        max_num_sequences: int | None = None,
        max_tokens_per_step: int | None = None,
        **fields: Any,
    ) -> Self:
        """Return a config with the device's default for each limit that is None."""
        sequences, tokens = LIMITS_BY_DEVICE.get(device, LIMITS_BY_DEVICE["cpu"])
        return cls(
            device=device,
            max_num_sequences=max_num_sequences or sequences,
            max_tokens_per_step=max_tokens_per_step or max(tokens, max_num_sequences or 0),
            **fields,
        )
