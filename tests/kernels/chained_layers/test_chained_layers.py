from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.chained_layers import Layer, Layers, op, run_layers
from kernels.kv_write import HeadNorms, LayerCache, rotary_kv_write
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from kernels.product_chain import After, Chain, Link, pack_panels, run_chain
from kernels.quantization import quantize_int8
from kernels.testing import assert_matches
from tests.kernels.product_chain.formats import FORMATS, weight_in

of_every_format = pytest.mark.parametrize("format_", FORMATS)
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN, WIDTH, BLOCK_SIZE = 6, 2, 16, 48, 72, 16
NUM_LAYERS, LONGEST, EPS, SCALE = 3, 128, 1e-5, 0.3
QKV = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
# (new tokens, context) of a Step's Sequences: decode rows, a whole prompt, a chunk, and a chunk of many rows.
LENS = ((1, 20), (1, 1), (9, 9), (5, 38), (1, 77), (70, 90))


@dataclass(frozen=True)
class Step:
    """A Step's rows, and what their Sequences have had before."""

    qkv: Tensor
    residual: Tensor
    positions: Tensor
    slots: Tensor
    plan: AttentionPlan


def chain(generator: torch.Generator, format_: torch.dtype) -> Chain:
    def link(in_features: int, out_features: int, after: After) -> Link:
        weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
        norm = torch.rand(out_features, generator=generator) + 0.5 if after is After.NORM else None
        return Link(pack_panels(weight_in(format_, weight)), after, norm)

    return Chain(
        [
            link(NUM_HEADS * HEAD_DIM, HIDDEN, After.NORM),
            link(HIDDEN, 2 * WIDTH, After.SILU),
            link(WIDTH, HIDDEN, After.NORM),
            link(HIDDEN, QKV, After.NOTHING),
        ],
        EPS,
    )


def make_layers(
    generator: torch.Generator, format_: torch.dtype = torch.int8, *, is_full: bool
) -> list[Layer]:
    """Return layers that differ in all that a layer may have; `is_full`: with norms of heads and windows."""
    layers = []
    for number in range(NUM_LAYERS):
        angles = torch.randn(LONGEST, 2, HEAD_DIM // 2, generator=generator)
        query, key = torch.rand(2, HEAD_DIM, generator=generator) + 0.5
        norms = HeadNorms(query, key, EPS) if is_full else None
        window = 11 if is_full and number == 1 else None
        last = number == NUM_LAYERS - 1
        layers.append(Layer(angles, norms, window, None if last else chain(generator, format_)))
    return layers


def make_caches(dtype: torch.dtype) -> list[LayerCache]:
    """Return caches of Blocks for all LENS, with an earlier token in every Slot."""
    generator = torch.Generator().manual_seed(3)
    num_blocks = sum(-(-context // BLOCK_SIZE) for _, context in LENS)
    caches = []
    for _ in range(NUM_LAYERS):
        cache = LayerCache.allocate(num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype)
        for one in (cache.keys, cache.values):
            noise = torch.randn(one.shape, generator=generator)
            one.copy_(noise.mul(40).clamp(-127, 127) if dtype is torch.int8 else noise)
        if cache.scales is not None:
            cache.scales.copy_(torch.rand(cache.scales.shape, generator=generator) / 40)
        caches.append(cache)
    return caches


def make_step(chosen: Sequence[int] = range(len(LENS)), num_rows: int | None = None) -> Step:
    """Return the Step of some of LENS, with the same rows for each in any choice.

    With `num_rows`, only so many rows of the one that is chosen.
    """
    generator = torch.Generator().manual_seed(5)
    blocks = torch.randperm(sum(-(-context // BLOCK_SIZE) for _, context in LENS), generator=generator)
    owners = np.repeat(range(len(LENS)), [-(-context // BLOCK_SIZE) for _, context in LENS])
    tables = np.zeros((len(chosen), LONGEST // BLOCK_SIZE), dtype=np.int64)
    qkv, residual = (
        torch.randn(sum(n for n, _ in LENS), width, generator=generator) for width in (QKV, HIDDEN)
    )
    ends = np.cumsum([n for n, _ in LENS])
    rows: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    counts: list[int] = []
    for line, number in enumerate(chosen):
        length, context = LENS[number]
        own = blocks[torch.from_numpy(owners == number)].numpy()
        tables[line, : len(own)] = own
        count = length if num_rows is None else num_rows
        at = np.arange(context - length, context - length + count)
        rows += range(ends[number] - length, ends[number] - length + count)
        positions += at.tolist()
        slots += (own[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE).tolist()
        counts.append(count)
    plan = plan_attention(
        counts,
        np.array(positions),
        tables,
        block_size=BLOCK_SIZE,
        group=NUM_HEADS // NUM_KV_HEADS,
        head_dim=HEAD_DIM,
    )
    return Step(qkv[rows], residual[rows], torch.tensor(positions), torch.tensor(slots), plan)


def run_apart(
    layers: Sequence[Layer], step: Step, caches: Sequence[LayerCache], soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Return what the operators compute, one after the other, and the residual."""
    x, residual = step.qkv.clone(), step.residual.clone()
    for layer, cache in zip(layers, caches, strict=True):
        query = rotary_kv_write(x, layer.angles, step.positions, step.slots, cache, layer.norms)
        x = paged_attention(
            query,
            cache,
            step.plan,
            SCALE,
            dtype=torch.float32,
            window=layer.window,
            soft_cap=soft_cap,
        )
        if layer.chain is not None:
            x = run_chain(layer.chain, x, residual)
    return x, residual


def run_together(layers: Layers, step: Step, caches: list[LayerCache]) -> tuple[Tensor, Tensor]:
    residual = step.residual.clone()
    out = run_layers(layers, step.qkv.clone(), residual, step.positions, step.slots, caches, step.plan)
    return out, residual


# (threads, the most rows that run together)
SHARES = ((1, 8), (1, 100), (2, 256), (3, 24))


@of_every_format
@pytest.mark.parametrize(
    "cache_dtype", [torch.float32, torch.bfloat16, torch.int8], ids=["cache-f32", "cache-bf16", "cache-int8"]
)
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "plain"])
@pytest.mark.parametrize(("num_threads", "most_rows"), SHARES)
def test_computes_what_the_operators_do(
    num_threads: int,
    most_rows: int,
    is_full: bool,
    cache_dtype: torch.dtype,
    format_: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.paged_attention.plan.num_threads", lambda: 3)
    parts = make_layers(generator, format_, is_full=is_full)
    soft_cap = 5.0 if is_full else None
    step, caches, expected_caches = make_step(), make_caches(cache_dtype), make_caches(cache_dtype)
    expected, total = run_apart(parts, step, expected_caches, soft_cap)
    monkeypatch.setattr(op, "num_threads", lambda: num_threads)
    monkeypatch.setattr(op, "MOST_ROWS", most_rows)
    layers = Layers(parts, scale=SCALE, soft_cap=soft_cap)
    # Twice into the same cache: the second run's rows lie where the first one's do.
    for _ in range(2):
        out, residual = run_together(layers, step, caches)
        assert_matches(out, expected)
        assert_matches(residual, total)
    for cache, other in zip(caches, expected_caches, strict=True):
        assert_matches(cache.keys.float(), other.keys.float())
        assert_matches(cache.values.float(), other.values.float())


@of_every_format
def test_a_row_has_the_same_bits_in_any_step_however_threads_share_the_work(
    format_: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.paged_attention.plan.num_threads", lambda: 3)
    layers = Layers(make_layers(generator, format_, is_full=True), scale=SCALE, soft_cap=5.0)
    ends = np.cumsum([length for length, _ in LENS])

    def run(chosen: Sequence[int], num_rows: int | None = None) -> tuple[Tensor, Tensor]:
        return run_together(layers, make_step(chosen, num_rows), make_caches(torch.bfloat16))

    together, totals = run(range(len(LENS)))
    for num_threads, most_rows in SHARES:
        monkeypatch.setattr(op, "num_threads", lambda count=num_threads: count)
        monkeypatch.setattr(op, "MOST_ROWS", most_rows)
        out, total = run(range(len(LENS)))
        assert torch.equal(out, together)
        assert torch.equal(total, totals)
        for number, (length, _) in enumerate(LENS):
            rows = slice(ends[number] - length, ends[number])
            out, total = run([number])
            assert torch.equal(out, together[rows])
            assert torch.equal(total, totals[rows])
    out, _ = run([len(LENS) - 1], 33)
    assert torch.equal(out, together[ends[-2] : ends[-2] + 33])


def test_threads_that_share_a_long_context_compute_the_same_bits(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second layer has a window, within which nothing is long."""
    monkeypatch.setattr(f"{__name__}.LENS", ((1, 2000), (3, 40), (2, 1300)))
    monkeypatch.setattr(f"{__name__}.LONGEST", 2048)
    monkeypatch.setattr("kernels.paged_attention.plan.num_threads", lambda: 5)
    layers = Layers(make_layers(generator, is_full=True), scale=SCALE)
    found = []
    for num_threads in (1, 2, 4, 5):  # by 4 one of the long contexts is shared, by 5 both are
        monkeypatch.setattr(op, "num_threads", lambda count=num_threads: count)
        found.append(run_together(layers, make_step(range(3)), make_caches(torch.int8)))
    for out, residual in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(residual, found[0][1])


def test_pieces_begin_with_an_item_and_are_as_long_as_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "MOST_ROWS", 16)
    assert op.cut(make_step().plan, 87).tolist() == [
        [0, 5, 0, 16],
        [5, 8, 16, 17],  # a decode row, and the first rows of the last Sequence
        [8, 10, 33, 16],
        [10, 12, 49, 16],
        [12, 14, 65, 16],
        [14, 15, 81, 6],
    ]
    monkeypatch.setattr(op, "MOST_ROWS", 80)
    assert op.cut(make_step().plan, 87).tolist() == [[0, 10, 0, 49], [10, 15, 49, 38]]


def test_what_does_not_fit_is_refused(generator: torch.Generator) -> None:
    parts = make_layers(generator, is_full=False)
    with pytest.raises(ValueError, match="each layer but the last needs a chain"):
        Layers(parts[:-1], scale=SCALE)
    with pytest.raises(ValueError, match="each layer but the last needs a chain"):
        Layers([parts[-1], parts[-1]], scale=SCALE)
    links = [Link(pack_panels(quantize_int8(torch.ones(4, 4))), After.NORM, torch.ones(4))] * 5
    with pytest.raises(ValueError, match="more than 4 links"):
        Layers([replace(parts[0], chain=Chain(links)), parts[-1]], scale=SCALE)
    layers, step = Layers(parts, scale=SCALE), make_step()
    with pytest.raises(ValueError, match="what does not fit"):
        run_together(layers, replace(step, residual=step.residual[:-1]), make_caches(torch.bfloat16))
    with pytest.raises(ValueError, match=r"a cache of torch\.float16"):
        run_together(layers, step, make_caches(torch.float16))
