"""Emits attention over an int8 cache with byte products (AVX512 VNNI), for Blocks of 16 tokens.

Queries and weights are rounded to 24 bits, kept as three bytes. Their products with keys and values are exact
integers, and so is the sum of weights. So no result depends on the order of tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer
from kernels.paged_attention.byte_vectors import (
    BIT,
    BITS,
    BYTE,
    BYTES,
    FLOATS,
    HALF,
    HAS_BYTES,
    LINE,
    WORD,
    WORDS,
    add_product,
    at_address,
    call_llvm,
    constant,
    int64,
    keep_larger,
    loaded,
    power,
    reduced_maximum,
    rounded,
    shuffled,
    spread,
    variable,
    whole,
)
from kernels.simd import F32, I32, I64, LANES, fetch_line, intrinsic, lanes_of, load_lanes

BLOCK = LANES  # tokens
# The bytes of a query are signed and those of a weight are not; the largest of either may be rounded up.
NUM_BYTES = 3
LARGEST_QUERY, LARGEST_WEIGHT = 127 << 16, 255 << 16
# The most vectors that leave enough registers for the other factors: of queries, and of weights.
MOST_VECTORS, MOST_MIXED = 6, 4
AHEAD = 3  # Blocks from the one that is read to the one that is fetched: memory is some 200 cycles away
# What a place that a row does not read has in place of a score, which is above LEAST_SCORE.
UNREAD, LEAST_SCORE = -3e38, -1e38
UNIT = float(1 << 30)  # how often the sum of weights counts a weight of 1


class Lines(NamedTuple):
    """Where the Blocks of one head of a Sequence lie in the cache; all but the numbers are addresses."""

    levels: int
    scales: int
    table: int  # of the Sequence
    first: int  # Block
    end: int  # Block
    num_kv_heads: int
    head: int
    head_dim: int


class Rows(NamedTuple):
    """Vectors in memory: the address of the first, and the bytes from one to the next."""

    start: int
    stride: int


@intrinsic
def split_query(_context: Any, query: Pointer, start: Any, count: Any, target: Any, inverse: Any) -> Any:
    """Store `query * inverse`, `count` floats, as bytes at the address `target`: the upper ones first.

    After them, and after 4 bytes more, is what makes up for keys whose levels are taken 128 higher: an int32
    for the bytes of each place, the upper ones first. `count` is a multiple of LANES.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        query, start, count, target, inverse = arguments
        sums = [variable(builder, constant(WORDS, 0)) for _ in range(NUM_BYTES)]
        with cgutils.for_range(builder, builder.udiv(count, int64(LANES))) as loop:
            at = builder.mul(loop.index, int64(LANES))
            x = load_lanes(builder, builder.gep(query, [builder.add(start, at)]), LANES)
            level = rounded(builder, builder.fmul(x, spread(builder, inverse)))
            for number, total in reversed(list(enumerate(sums))):
                higher = builder.ashr(builder.add(level, constant(WORDS, 128)), constant(WORDS, 8))
                one = builder.sub(level, builder.shl(higher, constant(WORDS, 8)))
                address = builder.add(builder.add(target, at), builder.mul(count, int64(number)))
                builder.store(builder.trunc(one, BYTES), at_address(builder, address, BYTES), align=1)
                builder.store(builder.add(builder.load(total), one), total)
                level = higher
        end = builder.add(target, builder.mul(count, int64(NUM_BYTES)))
        for number, total in enumerate(sums):
            found = call_llvm(builder, f"llvm.vector.reduce.add.v{LANES}i32", I32, [builder.load(total)])
            address = builder.add(end, int64(4 + 4 * number))
            builder.store(
                builder.mul(found, ir.Constant(I32, -128)), at_address(builder, address, I32), align=4
            )
        return context.get_dummy_value()

    return types.void(query, types.intp, types.intp, types.int64, types.float32), _where_available(generate)


@intrinsic
def score_blocks(
    _context: Any, num_vectors: Any, queries: Any, scores: Any, lines: Any, values: Any, value_scales: Any
) -> Any:
    """Fill `scores` with the products of at most MOST_VECTORS vectors and the keys of all Blocks.

    `queries` are as `split_query` stores them, with the float32 between their bytes and the rest: what a
    product of levels is worth beside the scale of its key. A line of `scores` has a float32 for each token.
    Meanwhile the values of these Blocks are fetched; `values` and `value_scales` are their addresses.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        num_vectors, *packed, values, value_scales = arguments
        queries, scores, lines = (cgutils.unpack_tuple(builder, one) for one in packed)
        for count in _counts(builder, num_vectors, MOST_VECTORS):
            _score(
                builder,
                _rows(builder, queries, count),
                _rows(builder, scores, count),
                Lines(*lines),
                values,
                value_scales,
            )
        return context.get_dummy_value()

    kinds = (types.intp, queries, scores, lines, types.int64, types.int64)
    return types.void(*kinds), _where_available(generate)


def _score(
    builder: Any, queries: list[Any], scores: list[Any], lines: Lines, values: Any, value_scales: Any
) -> None:
    """Emit `score_blocks` for vectors by the addresses of their queries and scores."""
    head_dim = lines.head_dim
    rest = [builder.add(one, builder.mul(head_dim, int64(NUM_BYTES))) for one in queries]
    factors = [spread(builder, loaded(builder, one, F32)) for one in rest]
    starts = [
        [
            spread(builder, loaded(builder, builder.add(one, int64(4 + 4 * byte)), I32))
            for byte in range(NUM_BYTES)
        ]
        for one in rest
    ]
    sums = [[variable(builder, start) for start in row] for row in starts]
    # Four lines of a Block, of one element of all 16 keys each, become words of four elements.
    order = [byte * LANES + lane for lane in range(LANES) for byte in range(WORD)]
    block_bytes = builder.mul(head_dim, int64(BLOCK))
    with _blocks(builder, lines) as (number, line, line_ahead):
        keys, ahead, behind = (
            builder.add(levels, builder.mul(one, block_bytes))
            for levels, one in ((lines.levels, line), (lines.levels, line_ahead), (values, line))
        )
        for scales, one in ((lines.scales, line_ahead), (value_scales, line)):
            fetch_line(builder, builder.add(scales, builder.mul(one, int64(4 * BLOCK))))
        for row, first in zip(sums, starts, strict=True):
            for total, start in zip(row, first, strict=True):
                builder.store(start, total)
        with cgutils.for_range(builder, builder.udiv(head_dim, int64(WORD))) as loop:
            at = builder.mul(loop.index, int64(LANES * WORD))
            fetch_line(builder, builder.add(ahead, at))
            fetch_line(builder, builder.add(behind, at), is_near=False)
            levels = shuffled(builder, loaded(builder, builder.add(keys, at), LINE), None, order)
            levels = builder.bitcast(builder.xor(levels, constant(LINE, -128)), WORDS)
            for query, row in zip(queries, sums, strict=True):
                address = builder.add(query, builder.mul(loop.index, int64(WORD)))
                for total in row:
                    add_product(builder, total, levels, spread(builder, loaded(builder, address, I32)))
                    address = builder.add(address, head_dim)
        scale = loaded(builder, builder.add(lines.scales, builder.mul(line, int64(4 * BLOCK))), FLOATS)
        for row, factor, target in zip(sums, factors, scores, strict=True):
            product = builder.fmul(builder.fmul(whole(builder, row), scale), factor)
            address = builder.add(target, builder.mul(number, int64(4 * BLOCK)))
            builder.store(product, at_address(builder, address, FLOATS), align=4)


@intrinsic
def weigh_blocks(_context: Any, scores: Any, low: Any, high: Any, lines: Any) -> Any:
    """Replace a vector's scores, to the base 2, by bytes of weights; return what their products are worth.

    The scores of the places low..high count, unless they are UNREAD. A weight has the scale of its value in
    it. For each Block, there are 16 upper bytes, then 16 of the middle, then 16 lower ones, packed from the
    beginning on.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        scores, low, high, packed = arguments
        lines = Lines(*cgutils.unpack_tuple(builder, packed))
        read = _Read(lines, scores, *(builder.trunc(one, I32) for one in (low, high)))
        peak, scale = _largest(builder, read)
        zero, largest = ir.Constant(F32, 0.0), ir.Constant(F32, float(LARGEST_WEIGHT))
        inverse = builder.select(builder.fcmp_ordered(">", scale, zero), builder.fdiv(largest, scale), zero)
        total, is_sound = _store_weights(builder, read, peak, inverse)
        worth = builder.fdiv(scale, builder.fmul(largest, total))
        return builder.select(is_sound, worth, ir.Constant(F32, float("nan")))

    return types.float32(types.int64, types.intp, types.intp, lines), _where_available(generate)


class _Read(NamedTuple):
    """What a vector reads: Blocks, the address of their scores, and the first and the end place, as int32."""

    lines: Lines
    scores: Any
    low: Any
    high: Any

    def block(self, builder: Any, number: Any, line: Any) -> tuple[Any, Any, Any]:
        """Return the scores of a Block, the scales of its values, and for each token whether it counts."""
        scores = loaded(builder, builder.add(self.scores, builder.mul(number, int64(4 * BLOCK))), FLOATS)
        place = builder.add(self.lines.scales, builder.mul(line, int64(4 * BLOCK)))
        first = builder.mul(
            builder.trunc(builder.add(number, self.lines.first), I32), ir.Constant(I32, BLOCK)
        )
        steps = ir.Constant(WORDS, list(range(LANES)))
        distance = builder.add(spread(builder, builder.sub(first, self.low)), steps)
        is_near = builder.icmp_unsigned("<", distance, spread(builder, builder.sub(self.high, self.low)))
        # NaN counts, and makes the result NaN.
        is_read = builder.fcmp_unordered(">", scores, constant(FLOATS, LEAST_SCORE))
        return scores, loaded(builder, place, FLOATS), builder.and_(is_near, is_read)


def _largest(builder: Any, read: _Read) -> tuple[Any, Any]:
    """Emit the search for the largest score, and for the largest scale of a value."""
    score, scale = (variable(builder, constant(FLOATS, least)) for least in (UNREAD, 0.0))
    with _blocks(builder, read.lines) as (number, line, _):
        scores, scales, counts = read.block(builder, number, line)
        keep_larger(builder, score, builder.select(counts, scores, constant(FLOATS, UNREAD)))
        keep_larger(builder, scale, builder.select(counts, scales, constant(FLOATS, 0.0)))
    return reduced_maximum(builder, score), reduced_maximum(builder, scale)


def _store_weights(builder: Any, read: _Read, peak: Any, inverse: Any) -> tuple[Any, Any]:
    """Emit the bytes of weights, with the scales of their values, over scores that have been read.

    Return the sum of weights without scales, and whether all are numbers.
    """
    zeros = constant(FLOATS, 0.0)
    order = [WORD * lane + byte for byte in (2, 1, 0, 3) for lane in range(LANES)]
    is_bad = variable(builder, ir.Constant(BITS, [0] * LANES))
    totals = [variable(builder, ir.Constant(HALF, [0] * (LANES // 2))) for _ in range(2)]
    with _blocks(builder, read.lines) as (number, line, _):
        scores, scales, counts = read.block(builder, number, line)
        weight = builder.select(counts, power(builder, builder.fsub(scores, spread(builder, peak))), zeros)
        units = rounded(builder, builder.fmul(weight, constant(FLOATS, UNIT)))
        for half, total in enumerate(totals):
            some = shuffled(builder, units, None, [half * (LANES // 2) + lane for lane in range(LANES // 2)])
            builder.store(builder.add(builder.load(total), builder.zext(some, HALF)), total)
        x = builder.select(counts, builder.fmul(weight, scales), zeros)
        builder.store(builder.or_(builder.load(is_bad), builder.fcmp_unordered("uno", x, x)), is_bad)
        level = rounded(builder, builder.fmul(x, spread(builder, inverse)))
        # The fourth bytes, all 0, end no later than the scores that have been read.
        packed = shuffled(builder, builder.bitcast(level, LINE), None, order)
        target = builder.add(read.scores, builder.mul(number, int64(NUM_BYTES * BLOCK)))
        builder.store(packed, at_address(builder, target, LINE), align=1)
    both = builder.add(*(builder.load(total) for total in totals))
    total = builder.uitofp(call_llvm(builder, f"llvm.vector.reduce.add.v{LANES // 2}i64", I64, [both]), F32)
    bad = call_llvm(builder, f"llvm.vector.reduce.or.v{LANES}i1", BIT, [builder.load(is_bad)])
    return builder.fmul(total, ir.Constant(F32, 1 / UNIT)), builder.not_(bad)


@intrinsic
def mix_blocks(
    _context: Any,
    num_vectors: Any,
    num_registers: Any,
    column: Any,
    weights: Any,
    worths: Any,
    out: Any,
    lines: Any,
) -> Any:
    """Add the values of all Blocks, by their weights, into `out`, for at most MOST_MIXED vectors.

    It takes as many columns as `num_registers`, 1 or 2, hold, from `column` on. `weights` are as
    `weigh_blocks` stores them, `worths` the float32 that it returns; a line of `out` has head_dim float32.
    """
    if not isinstance(num_registers, types.IntegerLiteral):
        return None
    registers = num_registers.literal_value

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        num_vectors, _, column, *packed = arguments
        weights, worths, out, numbers = (cgutils.unpack_tuple(builder, one) for one in packed)
        lines = Lines(*numbers)
        lines = lines._replace(levels=builder.add(lines.levels, column))
        for count in _counts(builder, num_vectors, MOST_MIXED):
            sums = _mix(builder, _rows(builder, weights, count), registers, lines)
            for row, worth, target in zip(
                sums, _rows(builder, worths, count), _rows(builder, out, count), strict=True
            ):
                factor = spread(builder, loaded(builder, worth, F32))
                start = builder.add(target, builder.mul(column, int64(4)))
                for register, pair in enumerate(row):
                    place = at_address(builder, builder.add(start, int64(4 * LANES * register)), FLOATS)
                    found = builder.fmul(whole(builder, pair), factor)
                    builder.store(builder.fadd(builder.load(place, align=4), found), place, align=4)
        return context.get_dummy_value()

    signature = types.void(types.intp, num_registers, types.intp, weights, worths, out, lines)
    return signature, _where_available(generate)


def _mix(builder: Any, weights: list[Any], registers: int, lines: Lines) -> list[list[list[Any]]]:
    """Emit the products with values; return the sums of each byte by vector and register."""
    zeros = constant(WORDS, 0)
    sums = [[[variable(builder, zeros) for _ in range(NUM_BYTES)] for _ in range(registers)] for _ in weights]
    some = lanes_of(BYTE, registers * LANES)
    with _blocks(builder, lines) as (number, line, line_ahead):
        values, ahead = (
            builder.add(lines.levels, builder.mul(one, builder.mul(lines.head_dim, int64(BLOCK))))
            for one in (line, line_ahead)
        )
        at = builder.mul(number, int64(NUM_BYTES * BLOCK))
        for first in range(0, BLOCK, WORD):
            offsets = [builder.mul(lines.head_dim, int64(first + token)) for token in range(WORD)]
            for offset in offsets:
                fetch_line(builder, builder.add(ahead, offset))
            rows = [loaded(builder, builder.add(values, offset), some) for offset in offsets]
            levels = [_words_of(builder, rows, register) for register in range(registers)]
            for start, row in zip(weights, sums, strict=True):
                for byte in range(NUM_BYTES):
                    address = builder.add(builder.add(start, at), int64(byte * BLOCK + first))
                    word = spread(builder, loaded(builder, address, I32))
                    for level, pair in zip(levels, row, strict=True):
                        add_product(builder, pair[byte], word, level)
    return sums


def _words_of(builder: Any, rows: Sequence[Any], register: int) -> Any:
    """Return words of the same element of four rows, for the elements of one register."""
    width = rows[0].type.count
    order = [token * width + register * LANES + lane for lane in range(LANES) for token in range(WORD)]
    first, second = (shuffled(builder, rows[at], rows[at + 1], list(range(2 * width))) for at in (0, 2))
    return builder.bitcast(shuffled(builder, first, second, order), WORDS)


def _where_available(generate: Any) -> Any:
    """Return a generator of code that emits nothing where HAS_BYTES is false."""

    def generate_or_not(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if HAS_BYTES:
            return generate(context, builder, signature, arguments)
        return context.get_constant_null(signature.return_type)

    return generate_or_not


@contextmanager
def _blocks(builder: Any, lines: Lines) -> Iterator[tuple[Any, Any, Any]]:
    """Emit a loop over Blocks; yield the number of one, its line in the cache, and that of one AHEAD."""
    last = builder.sub(lines.end, int64(1))

    def line_of(block: Any) -> Any:
        entry = loaded(builder, builder.add(lines.table, builder.mul(block, int64(8))), I64)
        return builder.add(builder.mul(entry, lines.num_kv_heads), lines.head)

    with cgutils.for_range(builder, builder.sub(lines.end, lines.first)) as loop:
        block = builder.add(lines.first, loop.index)
        following = builder.add(block, int64(AHEAD))
        is_last = builder.icmp_signed(">", following, last)
        yield loop.index, line_of(block), line_of(builder.select(is_last, last, following))


def _counts(builder: Any, num_vectors: Any, most: int) -> Iterator[int]:
    """Emit code for every number of vectors up to `most`; yield the number that it is emitted for."""
    end = builder.append_basic_block("vectors_end")
    switch = builder.switch(num_vectors, end)
    for count in range(1, most + 1):
        block = builder.append_basic_block(f"vectors_{count}")
        switch.add_case(ir.Constant(num_vectors.type, count), block)
        builder.position_at_end(block)
        yield count
        builder.branch(end)
    builder.position_at_end(end)


def _rows(builder: Any, rows: Sequence[Any], count: int) -> list[Any]:
    start, stride = rows
    return [builder.add(start, builder.mul(stride, int64(number))) for number in range(count)]
