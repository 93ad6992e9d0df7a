"""Opens an engine's device and measures the memory it has left for the KV cache."""

from collections.abc import Callable

import torch

from kernels import int8_linear
from kernels.device import converts_fp8
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError

# Share of all memory kept for fragmentation of the allocator and the graphs of decode Steps.
RESERVED_SHARE = 0.06


def open_device(config: EngineConfig) -> torch.device:
    """Return the device of a config; raises ConfigError when it is missing or cannot run the dtype."""
    if config.device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device 'cuda': torch {torch.__version__} finds no GPU")
        device = torch.device("cuda")
        if config.dtype == "fp8" and not converts_fp8(device):
            raise ConfigError(
                f"dtype fp8: {torch.cuda.get_device_name(device)} does not support it; use int8 or bf16"
            )
        return device
    if config.dtype == "int8" and not int8_linear.is_available():
        raise ConfigError("dtype int8 needs a torch with oneDNN; use bf16 or f32")
    if config.dtype == "fp8":
        raise ConfigError("dtype fp8 needs device 'cuda'; on a CPU use int8, bf16 or f32")
    if config.kv_cache_dtype == "fp8":
        raise ConfigError("kv_cache_dtype fp8 needs device 'cuda'; on a CPU use int8")
    return torch.device("cpu")


def spare_bytes(device: torch.device, run_largest_step: Callable[[], object]) -> int:
    """Return the bytes a GPU has left for the KV cache beside the largest Step, which runs to be measured."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest_step()
    step_bytes = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return max(free - step_bytes - int(total * RESERVED_SHARE), 0)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception means that memory ran out, on any device; empties CUDA's cache if so."""
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        return True
    # A CPU's allocator has no exception of its own.
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
