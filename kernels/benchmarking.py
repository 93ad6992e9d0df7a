"""What every bench of a GPU's kernels shares: a clock, the measured copy bandwidth, and one kind of line."""

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

COPY_BYTES = 1 << 30
FLUSH_BYTES = 256 << 20  # more than any second-level cache


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one call took: the median over many, each with a cold cache."""

    microseconds: float
    moved_bytes: int  # what the call must read and write at least

    @property
    def share_of_copy(self) -> float:
        """The bandwidth as a share of what a plain copy of this device reaches."""
        return self.moved_bytes / (self.microseconds * 1e-6) / copy_bandwidth()


def time_call(call: Callable[[], object], moved_bytes: int = 0, *, repeats: int = 50) -> Timing:
    """Time a call on the device that is current, between events; compiled and warmed up first."""
    for _ in range(3):
        call()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        flush.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) * 1e3 for begin, end in pairs]
    return Timing(statistics.median(times), moved_bytes)


@functools.cache
def copy_bandwidth() -> float:
    """Return bytes a second that a device-to-device copy reads and writes here."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (time_call(lambda: target.copy_(source)).microseconds * 1e-6)


def report(op: str, shape: str, timing: Timing, rivals: dict[str, Timing]) -> None:
    """Print one line: the op, how fast it is, and how much faster than each rival."""
    ratios = "  ".join(
        f"{name} x{rival.microseconds / timing.microseconds:.2f}" for name, rival in rivals.items()
    )
    share = f"{timing.share_of_copy:4.0%} of copy"
    print(f"{op:16} {shape:44} {timing.microseconds:9.1f} us  {share}  {ratios}", flush=True)  # noqa: T201


def require_gpu() -> None:
    """Exit with a message where there is no GPU to measure."""
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU here, and there is nothing to measure without one")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)  # noqa: T201
