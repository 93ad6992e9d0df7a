"""Shared tools of the GPU kernels' benches: a timer, the chip's peak rates, and a table of results."""

import datetime
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

COPY_BYTES = 1 << 30
# More than any second-level cache, and so much that a GPU takes longer to write them than the host takes to
# launch a call: what is timed never waits for the host.
FLUSH_BYTES = 1 << 30
PEAK_SIDE = 8192
ABSENT = "absent"  # of a rival that is not installed here
NONE = "-"  # where a rival, or a share, means nothing


@dataclass(frozen=True, slots=True)
class Timing:
    """The median duration of one call, over many calls with a cold cache."""

    microseconds: float


@dataclass(frozen=True, slots=True)
class LeastWork:
    """The least work that a call must do: bytes moved and operations."""

    moved_bytes: int  # read and written
    operations: int = 0  # multiplications and additions of matrix products
    dtype: torch.dtype = torch.bfloat16  # of their factors

    def share_of_copy(self, timing: Timing) -> float:
        """Return the bandwidth as a share of a plain copy's on this device."""
        return self.moved_bytes / (timing.microseconds * 1e-6) / copy_bandwidth()

    def share_of_peak(self, timing: Timing) -> float:
        """Return the operations per second as a share of torch's own largest product."""
        return self.operations / (timing.microseconds * 1e-6) / matmul_peak(self.dtype)


def time_call(call: Callable[[], object], *, repeats: int = 50) -> Timing:
    """Time a call on the current device by CUDA events, after a warm-up that also compiles it."""
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
    return Timing(statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in pairs))


@functools.cache
def copy_bandwidth() -> float:
    """Return the bytes per second that a device-to-device copy reads and writes here."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / (time_call(lambda: target.copy_(source)).microseconds * 1e-6)


@functools.cache
def matmul_peak(dtype: torch.dtype) -> float:
    """Return the operations per second of a large square product in torch.

    `dtype` is bfloat16, int8 or float8_e4m3fn.
    """
    left, right = (torch.ones(PEAK_SIDE, PEAK_SIDE, device="cuda").to(dtype) for _ in range(2))
    one = torch.ones((), device="cuda")
    calls: dict[torch.dtype, Callable[[], object]] = {
        torch.bfloat16: lambda: torch.mm(left, right.T),
        torch.int8: lambda: torch._int_mm(left, right.T),  # noqa: SLF001
        torch.float8_e4m3fn: lambda: torch._scaled_mm(  # noqa: SLF001
            left, right.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
    }
    return 2 * PEAK_SIDE**3 / (time_call(calls[dtype]).microseconds * 1e-6)


@dataclass(slots=True)
class ResultTable:
    """One op's measurements, printed row by row; `write` keeps them in a file named after the GPU."""

    op: str
    rivals: Sequence[str]
    _lines: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        columns = ("", "us", "of copy", "of peak", *(f"x {rival}" for rival in self.rivals))
        self._put(columns)
        self._put(["---"] * len(columns))

    def row(self, what: str, ours: Timing, work: LeastWork, rivals: Mapping[str, Timing | str]) -> None:
        """Add a measurement; each rival has a Timing, or a word that says why there is none.

        Raises ValueError when the rivals are not those of the table.
        """
        if list(rivals) != list(self.rivals):
            raise ValueError(f"{self.op}: rivals are {list(rivals)}, not {list(self.rivals)}")
        peak = f"{work.share_of_peak(ours):.0%}" if work.operations else NONE
        ratios = (
            rival if isinstance(rival, str) else f"{rival.microseconds / ours.microseconds:.2f}"
            for rival in rivals.values()
        )
        self._put((what, f"{ours.microseconds:.1f}", f"{work.share_of_copy(ours):.0%}", peak, *ratios))

    def write(self, folder: Path) -> Path:
        """Write `measured/GPU.md` into the op's folder; return the file."""
        gpu = torch.cuda.get_device_name()
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        file = folder / "measured" / f"{gpu.replace(' ', '_').replace('/', '_')}.md"
        file.parent.mkdir(exist_ok=True)
        head = [f"# {self.op} on {gpu}, {today}, torch {torch.__version__}", "", _LEGEND, ""]
        file.write_text("\n".join([*head, *self._lines, ""]), encoding="utf-8")
        return file

    def _put(self, cells: Sequence[str]) -> None:
        self._lines.append(f"| {' | '.join(cells)} |")
        print(self._lines[-1], flush=True)  # noqa: T201


_LEGEND = (
    "Medians of single calls with a cold cache. Shares are of a copy's bandwidth and of torch's own largest\n"
    "product in that dtype, both measured here; `x NAME` is that one's time over ours: above 1 we are faster."
)


def require_gpu() -> None:
    """Print the GPU's name; exit with a message if there is none."""
    if not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU here, and there is nothing to measure without one")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)  # noqa: T201
