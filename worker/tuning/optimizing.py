"""Apply optimizations one after another until a latency is reached. Knows no engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from worker.tuning.measuring import MeasuredSetting, Measurer
from worker.tuning.space import (
    ADMISSION,
    BLOCK_SIZE,
    DTYPE,
    KV_CACHE_DTYPE,
    PREFIX_CACHE,
    SEQUENCES,
    SPECULATION,
    Setting,
    plain,
)
from worker.tuning.trial_process import TrialFailedError

Alternative = tuple[str, Setting]  # its name, and what it changes
LEAST_GAIN = 0.02  # of the latency: less may be chance


@dataclass(frozen=True, slots=True)
class Optimized:
    """What optimizations gave. Latencies are the 95th percentile of requests."""

    optimizations: tuple[str, ...]
    setting: Setting
    first_latency_ms: float
    final_latency_ms: float
    final_quality: float  # 1 less the quality loss
    is_met: bool  # the latency and the quality

    def to_json(self) -> dict[str, Any]:
        """Return the answer of `optimize`, as it is printed."""
        return {
            "optimizations": list(self.optimizations),
            "final_latency_ms": round(self.final_latency_ms, 2),
            "final_quality": round(self.final_quality, 4),
        }


def stages(device: str) -> Iterator[tuple[str, Sequence[Alternative]]]:
    """Yield the kinds of optimization in order; of its alternatives, the first that helps is kept.

    Quantization is first where the quality allows it, else 16 bits; then batching; then the rest.
    """
    eight_bits = [("int8 quantization", {DTYPE: "int8"})]
    if device == "cuda":
        eight_bits.append(("fp8 quantization", {DTYPE: "fp8"}))
    yield "weights", [*eight_bits, ("16 bits", {DTYPE: "bf16"})]
    yield "batching", [(f"batching ({n} sequences)", {SEQUENCES: str(n)}) for n in (64, 16, 4)]
    yield "prefix cache", [("prefix cache", {PREFIX_CACHE: "on"})]
    yield "speculation", [("speculation", {SPECULATION: "auto"})]
    yield "admission", [("length-aware admission", {ADMISSION: "length-aware"})]
    yield "KV cache", [("int8 KV cache", {KV_CACHE_DTYPE: "int8"})]
    yield "blocks", [("blocks of 32 tokens", {BLOCK_SIZE: "32"})]


def optimize(
    target_latency_ms: float,
    target_quality: float,
    *,
    measurer: Measurer,
    device: str,
    told: Callable[[str, MeasuredSetting, bool], None] = lambda *_: None,
    failed: Callable[[str, TrialFailedError], None] = lambda *_: None,
) -> Optimized:
    """Apply optimizations to an engine without any, measure after each, and stop when the target is met.

    One that saves no latency, or makes the quality less than the target, is taken back. `told` gets each
    with its measurement and whether it is kept; `failed` gets one with which no trial ran.

    Raises:
        TrialFailedError: the first trial, without any optimization, failed.

    """
    best = first = measurer.measure(plain(device))
    told("none", first, True)
    applied: dict[str, str] = {}
    for kind, alternatives in stages(device):
        if _latency(best) <= target_latency_ms:
            break
        for name, change in alternatives:
            try:
                found = measurer.measure({**best.setting, **change})
            except TrialFailedError as error:
                failed(name, error)
                continue
            is_faster = _latency(found) < (1 - LEAST_GAIN) * _latency(best)
            is_kept = is_faster and _quality(found) >= target_quality
            told(name, found, is_kept)
            if is_kept:
                best = found
                applied[kind] = name
                break
    latency, quality = _latency(best), _quality(best)
    return Optimized(
        tuple(applied.values()),
        best.setting,
        _latency(first),
        latency,
        quality,
        is_met=latency <= target_latency_ms and quality >= target_quality,
    )


def _latency(measured: MeasuredSetting) -> float:
    return measured.result.latency_p95_ms


def _quality(measured: MeasuredSetting) -> float:
    return 1 - measured.loss.mean
