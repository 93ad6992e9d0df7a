"""Measures batching: against one request at a time, against padded batches, and by batch size."""

import time
from collections.abc import Sequence

import torch

from benchmarks.peer_engines import transformers as peer
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup, in_turns, ratio, rounded, run_seconds
from benchmarks.workloads import WorkItem, shifted

PADDED_ROWS = 8
# One at a time and padded, the workload takes long, and its rounds differ little.
MOST_ROUNDS, WARM_UP = 2, 8
BATCH_SIZES = {"small": (1, 2, 4, 8, 16, 32, 64), "medium": (1, 8, 64)}  # by checkpoint
PROMPT, OUTPUT = 16, {"small": 48, "medium": 16}  # tokens of a request of the sweep
MOST_REQUESTS = 64
PEAK_SIZE, PEAK_RUNS = 1536, 8


def batching(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run the workload all at once, one request at a time, and in padded batches of transformers, in f32."""
    num_threads = torch.get_num_threads()
    engine = setup.engine(enable_prefix_cache=False)
    generate = peer.load(setup.model, "f32", num_threads, 0, peer.OPTIONS | {"padded": PADDED_ROWS})

    def of_turn(turn: int) -> Sequence[WorkItem]:
        return setup.items if turn else setup.items[:WARM_UP]

    def padded(turn: int) -> float:
        torch.set_num_threads(num_threads)  # our engine may have taken fewer
        items = shifted(of_turn(turn), engine.model_info.vocab_size, turn)
        started = time.perf_counter()
        generate([list(item.prompt_ids) for item in items], [item.max_tokens for item in items])
        return time.perf_counter() - started

    seconds = in_turns(
        {
            "batched": lambda turn: run_seconds(engine, setup.items, turn),
            "one at a time": lambda turn: run_seconds(engine, of_turn(turn), turn, at_once=1),
            "padded": padded,
        },
        min(setup.rounds, MOST_ROUNDS),
    )
    alone, stats = ratio(seconds, "one at a time", "batched"), engine.stats
    wasted = {name: waste(items) for name, items in orders(setup.items).items()}
    packed = stats.padding_tokens / (stats.padding_tokens + stats.computed_tokens)
    return {
        "batching": MeasuredFigure(alone, rounded(seconds)),
        "batching_cost": MeasuredFigure(1 - 1 / alone, rounded(seconds)),
        "padded_batches": MeasuredFigure(
            ratio(seconds, "padded", "batched"), rounded(seconds) | {"rows": PADDED_ROWS}
        ),
        "padding_waste": MeasuredFigure(
            wasted["by arrival"], wasted | {"packed": packed, "rows": PADDED_ROWS}
        ),
    }


def orders(items: Sequence[WorkItem]) -> dict[str, list[WorkItem]]:
    """Return the requests as they arrive, and as transformers' padded side sorts them."""
    by_length = sorted(items, key=lambda item: (len(item.prompt_ids), item.max_tokens), reverse=True)
    return {"by arrival": list(items), "sorted": by_length}


def waste(items: Sequence[WorkItem]) -> float:
    """Return the share of rows that padded batches, in this order, compute for nothing."""
    useful = sum(len(item.prompt_ids) + item.max_tokens for item in items)
    computed = 0
    for start in range(0, len(items), PADDED_ROWS):
        batch = items[start : start + PADDED_ROWS]
        width = max(len(item.prompt_ids) for item in batch) + max(item.max_tokens for item in batch)
        computed += len(batch) * width
    return 1 - useful / computed


def utilization(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run short requests with more and more sequences in a Step, and compare with the peak of a product.

    The peak is the best of products before each size, as one that other work slows is no peak.
    """
    peak = 0.0
    flops: dict[str, dict[str, float]] = {model: {} for model in BATCH_SIZES}
    for model, sizes in BATCH_SIZES.items():
        for size in sizes:
            peak = max(peak, peak_flops())
            flops[model][str(size)] = _flops(setup, model, size)
    found = {
        model: {size: round(one / peak, 4) for size, one in by_size.items()}
        for model, by_size in flops.items()
    }
    most = max(max(shares.values()) for shares in found.values())
    return {"utilization": MeasuredFigure(most, {"by_size": found, "peak_gflops": round(peak / 1e9, 1)})}


def _flops(setup: Setup, model: str, size: int) -> float:
    """Return the operations a second of a checkpoint's products, with at most `size` sequences in a Step."""
    engine = setup.engine(model=setup.checkpoint(model), max_num_sequences=size, enable_prefix_cache=False)
    prompts = [setup.draw.prompt(PROMPT)[0] for _ in range(min(MOST_REQUESTS, 4 * size))]
    items = [WorkItem(prompt, OUTPUT[model]) for prompt in prompts]
    run_seconds(engine, items[:size], 0)
    before = engine.stats.computed_tokens
    seconds = run_seconds(engine, items, 1)
    info = engine.model_info
    # The embedding is no product: its weight is a table of rows.
    of_token = 2 * (info.num_parameters - info.vocab_size * info.hidden_size)
    return of_token * (engine.stats.computed_tokens - before) / seconds


def peak_flops() -> float:
    """Return the floating point operations a second of the best of several large products in f32."""
    a, b = torch.randn(PEAK_SIZE, PEAK_SIZE), torch.randn(PEAK_SIZE, PEAK_SIZE)
    torch.mm(a, b)
    seconds = []
    for _ in range(PEAK_RUNS):
        started = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - started)
    return 2 * PEAK_SIZE**3 / min(seconds)
