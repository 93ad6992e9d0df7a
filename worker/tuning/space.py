"""Define the settings that are searched, and the values that each may take. Knows no engine."""

from collections.abc import Mapping
from dataclasses import dataclass

Setting = Mapping[str, str]  # values by variable; an empty value leaves the setting at its default

DTYPE = "HEADRACE_DTYPE"
KV_CACHE_DTYPE = "HEADRACE_KV_CACHE_DTYPE"
SEQUENCES = "HEADRACE_MAX_NUM_SEQUENCES"
TOKENS = "HEADRACE_MAX_TOKENS_PER_STEP"
BLOCK_SIZE = "HEADRACE_BLOCK_SIZE"
PREFIX_CACHE = "HEADRACE_PREFIX_CACHE"
ADMISSION = "HEADRACE_ADMISSION"
SPECULATION = "HEADRACE_SPECULATION"
THREADS = "HEADRACE_THREADS"

DTYPES = {"cpu": ("f32", "bf16", "int8"), "cuda": ("bf16", "int8", "fp8")}
KV_CACHE_DTYPES = {"cpu": ("plain", "int8"), "cuda": ("plain", "int8", "fp8")}
VALUES = 2  # raised when those of a dimension change: a study cannot go on with others
MOST_SEQUENCES = {"cpu": 256, "cuda": 1024}
TOKENS_PER_STEP = {"cpu": (64, 2048), "cuda": (1024, 16_384)}


@dataclass(frozen=True, slots=True)
class Dimension:
    """A setting that is searched."""

    variable: str
    values: tuple[str, ...]
    is_ordered: bool = False  # neighbouring values are expected to be similar


def search_space(device: str, *, num_cores: int) -> tuple[Dimension, ...]:
    """Return what is searched on a device, the exact arithmetic first; a GPU's engine has no threads."""
    dimensions = (
        Dimension(DTYPE, DTYPES[device]),
        Dimension(KV_CACHE_DTYPE, KV_CACHE_DTYPES[device]),
        Dimension(SEQUENCES, _powers(1, MOST_SEQUENCES[device]), is_ordered=True),
        Dimension(TOKENS, _powers(*TOKENS_PER_STEP[device]), is_ordered=True),
        Dimension(BLOCK_SIZE, ("16", "32", "64"), is_ordered=True),
        Dimension(PREFIX_CACHE, ("on", "off")),
        Dimension(ADMISSION, ("length-aware", "fifo")),
        Dimension(SPECULATION, ("off", "auto")),
    )
    if device == "cuda":
        return dimensions
    return (*dimensions, Dimension(THREADS, tuple(map(str, range(1, num_cores + 1))), is_ordered=True))


def exact(device: str) -> dict[str, str]:
    """Return the settings that others' quality is compared with: nothing is quantized beyond the files."""
    return {DTYPE: DTYPES[device][0], KV_CACHE_DTYPE: "plain"}


def plain(device: str) -> dict[str, str]:
    """Return the settings of an engine without optimizations: one exact request at a time, no cache."""
    return exact(device) | {SEQUENCES: "1", PREFIX_CACHE: "off", ADMISSION: "fifo", SPECULATION: "off"}


def allowed(setting: Setting) -> dict[str, str]:
    """Return a setting that the engine takes: a Step holds a token of each running Sequence."""
    changed = dict(setting)
    if changed.get(SEQUENCES) and changed.get(TOKENS):
        changed[TOKENS] = str(max(int(changed[TOKENS]), int(changed[SEQUENCES])))
    return changed


def is_same(one: Setting, other: Setting) -> bool:
    """Return whether two settings set the same variables to the same values."""
    return {name: value for name, value in one.items() if value} == {
        name: value for name, value in other.items() if value
    }


def _powers(least: int, most: int) -> tuple[str, ...]:
    return tuple(str(1 << n) for n in range(least.bit_length() - 1, most.bit_length()))
