"""Triton kernel that chooses a row's next token without a sort.

Top-k and top-p keep the tokens above some logit, and some of the tokens equal to it. Bisection over its bits
finds that logit, with one pass over the row per halving: at most 32 passes, fewer where no token remains
between the bounds, and none where the option is off.
"""

import triton
import triton.language as tl


@triton.jit
def sample(
    logits, temperatures, top_ks, top_ps, min_ps, uniforms, out, row_stride, vocab_size, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * row_stride
    temperature = tl.load(temperatures + row).to(tl.float32)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        value = tl.load(source + start + lane, mask=start + lane < vocab_size, other=float("-inf")).to(
            tl.float32
        )
        is_better = value > best
        where = tl.where(is_better, start + lane, where)
        best = tl.where(is_better, value, best)
    largest = tl.max(best, 0)
    token = tl.minimum(tl.min(tl.where(best == largest, where, vocab_size), 0), vocab_size - 1)
    if (temperature > 0) & (largest > float("-inf")):
        scale = 1.4426950408889634 / temperature
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        min_p = tl.load(min_ps + row).to(tl.float32)
        # Keys above `high` are kept, of those in low..high as many as `quota`, and the rest is dropped.
        low = tl.full((), -0x80000000, tl.int64)
        high = low - 1
        quota = tl.zeros((), tl.float64)
        highest = _key(largest).to(tl.int64)
        num_left = tl.full((), 0, tl.int32) + vocab_size
        if top_k < vocab_size:
            low, high, quota, num_left = _find_top_k(
                source, top_k, low, highest, largest, scale, vocab_size, BLOCK
            )
        if top_p < 1:
            low, high, quota = _find_top_p(
                source, top_p, low, high, quota, num_left, highest, largest, scale, vocab_size, BLOCK
            )
        total = tl.zeros((), tl.float64)
        num_tied = tl.zeros((), tl.int32)
        for start in range(0, vocab_size, BLOCK):
            weight, num_tied = _kept(
                source, start, num_tied, low, high, quota, min_p, largest, scale, vocab_size, BLOCK
            )
            total += tl.sum(weight, 0)
        target = tl.load(uniforms + row) * total
        passed = tl.zeros((), tl.float64)
        num_tied = tl.zeros((), tl.int32)
        first = tl.full((), 0x7FFFFFFF, tl.int32)
        last = tl.zeros((), tl.int32)
        for start in range(0, vocab_size, BLOCK):
            weight, num_tied = _kept(
                source, start, num_tied, low, high, quota, min_p, largest, scale, vocab_size, BLOCK
            )
            is_passed = (passed + tl.cumsum(weight, 0) > target) & (weight > 0)
            first = tl.minimum(first, tl.min(tl.where(is_passed, start + lane, 0x7FFFFFFF), 0))
            last = tl.maximum(last, tl.max(tl.where(weight > 0, start + lane, 0), 0))
            passed += tl.sum(weight, 0)
        # Sums in another order may fall short of the total by a rounding error.
        token = tl.minimum(first, last)
    tl.store(out + row, token.to(tl.int64))


@triton.jit
def _find_top_k(source, top_k, low, highest, largest, scale, vocab_size, BLOCK: tl.constexpr):
    # Invariant: at least top_k keys are above `below`, and fewer than top_k above `above`.
    below, above = low - 1, highest
    num_left = tl.full((), 0, tl.int32) + vocab_size
    quota = tl.zeros((), tl.float64)
    while (above - below > 1) & (num_left != top_k):
        middle = (below + above) >> 1
        count, _ = _above(source, middle, largest, scale, vocab_size, BLOCK)
        if count >= top_k:
            below = middle
            num_left = count
        else:
            above = middle
    low, high = below + 1, below
    if num_left != top_k:
        high = above
        count, _ = _above(source, high, largest, scale, vocab_size, BLOCK)
        quota = top_k - count
    return low, high, quota, num_left


@triton.jit
def _find_top_p(
    source, top_p, low, high, quota, num_left, highest, largest, scale, vocab_size, BLOCK: tl.constexpr
):
    _, kept = _above(source, high, largest, scale, vocab_size, BLOCK)
    if high >= low:
        kept += quota * _weight(_value(high.to(tl.int32)), largest, scale).to(tl.float64)
    target = top_p * kept
    # Invariant: the mass above `bound` is less than the target, and the mass above `below` is not.
    below, bound = low - 1, highest
    num_above = tl.zeros((), tl.int32)
    mass = tl.zeros((), tl.float64)
    while (bound - below > 1) & (num_left - num_above > 1):
        middle = (below + bound) >> 1
        count, new_mass = _above(source, middle, largest, scale, vocab_size, BLOCK)
        if new_mass < target:
            bound, num_above, mass = middle, count, new_mass
        else:
            below, num_left = middle, count
    if num_left - num_above <= 1:
        low, high = below + 1, below
    else:
        weight = _weight(_value(bound.to(tl.int32)), largest, scale).to(tl.float64)
        needed = tl.maximum(tl.ceil((target - mass) / weight), 1.0)
        quota = tl.where(bound == high, tl.minimum(quota, needed), needed)
        low, high = bound, bound
    return low, high, quota


@triton.jit
def _key(value):
    # Maps floats to integers of the same order.
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _weight(value, largest, scale):
    return tl.exp2((value - largest) * scale)


@triton.jit
def _above(source, bound, largest, scale, vocab_size, BLOCK: tl.constexpr):
    # Returns the number of keys above a bound, and the sum of their weights.
    lane = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        in_row = start + lane < vocab_size
        value = tl.load(source + start + lane, mask=in_row, other=float("-inf")).to(tl.float32)
        is_above = in_row & (_key(value).to(tl.int64) > bound)
        count += is_above.to(tl.int32)
        mass += tl.where(is_above, _weight(value, largest, scale), 0.0)
    return tl.sum(count, 0), tl.sum(mass.to(tl.float64), 0)


@triton.jit
def _kept(source, start, num_tied, low, high, quota, min_p, largest, scale, vocab_size, BLOCK: tl.constexpr):
    # Returns the weights of a block of tokens, 0 for dropped ones, and the number of tied tokens so far.
    token = start + tl.arange(0, BLOCK)
    in_row = token < vocab_size
    value = tl.load(source + token, mask=in_row, other=float("-inf")).to(tl.float32)
    key = _key(value).to(tl.int64)
    is_tied = (in_row & (key >= low) & (key <= high)).to(tl.int32)
    rank = num_tied + tl.cumsum(is_tied, 0)
    weight = _weight(value, largest, scale)
    is_within = (key > high) | ((is_tied > 0) & (rank.to(tl.float64) <= quota))
    is_kept = in_row & is_within & (weight >= min_p)
    return tl.where(is_kept, weight, 0.0).to(tl.float64), num_tied + tl.sum(is_tied, 0)
