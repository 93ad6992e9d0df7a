"""Emits a small product of bytes, of bfloat16 or of float32, finished in registers.

AVX512 VNNI and AVX512_BF16 multiply and add a word in one instruction. Other processors widen its two halves
in two passes: to 16 bits, of which AVX2 multiplies and adds pairs, or to float32. So does every processor
where rows are not rounded to bfloat16.

A panel is multiplied by a few rows after the other, each time from end to end, so only the first tile waits
for memory. While tiles multiply one panel, they prefetch the next one, a share each.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import Pointer, has_feature, inlined
from kernels.simd import F32, I32, I64, fetch_line, intrinsic

# The columns in a register, and the registers whose sums a row keeps: without AVX512 there are half as many
# registers, of half the size.
_LANES, _REGISTERS = (16, 4) if has_feature("avx512f") else (8, 2)
# The most rows that leave enough registers for the other factors.
TILE_ROWS = 6
PANEL = _REGISTERS * _LANES
WORD = 4  # bytes of a weight: four of int8, a pair of bfloat16, or a float32
_LINE = 64  # bytes of a cache line

_VECTOR, _FLOATS = ir.VectorType(I32, _LANES), ir.VectorType(F32, _LANES)


@inlined
def tiles_of(num_rows: int) -> int:
    """Return the number of tiles for some rows."""
    return (num_rows + TILE_ROWS - 1) // TILE_ROWS


@inlined
def fetched(num_tiles: int, panels: int, panel: int, num_panels: int, num_words: int) -> tuple[int, int]:
    """Return from where the tiles before a panel prefetch it, and how many bytes each with a word.

    `panels` is an address. A tile that has a panel for itself reads it as fast as memory gives, and
    prefetches nothing; neither do those of the last panel.
    """
    if num_tiles == 1 or panel >= num_panels:
        return panels, 0
    return panels + panel * num_words * PANEL * WORD, (PANEL * WORD + num_tiles - 1) // num_tiles


@intrinsic
def multiply_bytes(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    ahead: Any,
    step: Any,
    levels: Pointer,
    levels_start: Any,
    levels_stride: Any,
    panels: Pointer,
    column: Any,
    offsets: Pointer,
    scales: Pointer,
    bias: Pointer,
    maxima: Pointer,
    first_row: Any,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Write `(levels @ panel + offsets) * scales * maxima + bias`, PANEL columns of at most TILE_ROWS rows.

    `levels` [num_rows, num_words, FACTOR_BYTES[BYTES]] are as `encode_row` writes them, with their start and
    stride in bytes; `panels` [num_panels, num_words, PANEL, WORD] are int8; sums of their products are exact.
    The panel is that of `column`, which is a multiple of PANEL; `offsets` (int32), `scales` and `bias` have
    all columns. `maxima` are read from `first_row` on. A row of `out`, float32, is `stride` long. Panels
    begin where a cache line does. With each word, `step` bytes are prefetched, from the address `ahead` on.
    """
    index = types.intp
    places = (levels, index, index, panels, index, offsets, scales, bias, maxima, index, out, index, index)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, ahead, step, levels, levels_start, levels_stride, panels, column, *others = arguments
        offsets, scales, bias, maxima, first_row, out, start, stride = others

        def scaled(register: int, totals: list[Any]) -> list[Any]:
            scale, more = (_nth_register(builder, one, column, register) for one in (scales, bias))
            rows = [builder.add(first_row, ir.Constant(I64, row)) for row in range(len(totals))]
            largest = [_spread(builder, builder.load(builder.gep(maxima, [row]))) for row in rows]
            products = [builder.fmul(builder.sitofp(total, _FLOATS), scale) for total in totals]
            return [_fused(builder, *factors, more) for factors in zip(products, largest, strict=True)]

        tile = _Tile(
            OF_BYTES,
            builder.gep(levels, [levels_start]),
            levels_stride,
            _panel(builder, panels, column, words),
            [_nth_register(builder, offsets, column, register) for register in range(_REGISTERS)],
            scaled,
            _Fetch(ahead, step),
        )
        _multiply(builder, tile, rows, words, _Rows(builder.gep(out, [start]), stride))
        return context.get_dummy_value()

    return types.void(index, index, index, index, *places), generate


@intrinsic
def multiply_floats(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    ahead: Any,
    step: Any,
    x: Pointer,
    x_start: Any,
    x_stride: Any,
    panels: Pointer,
    column: Any,
    bias: Pointer,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Write `x @ panel + bias`, PANEL columns of at most TILE_ROWS rows.

    `panels` [num_panels, num_words, PANEL, 4 / itemsize] are bfloat16, which is widened, or float32, and `x`
    [num_rows, num_words, 4 / itemsize] is float32, given as bytes with its start and stride. The panel is
    that of `column`, which is a multiple of PANEL; `bias` has all columns. A row of `out`, float32, is
    `stride` long. A sum takes columns of `x` in their order, so a row has the same bits beside any others.
    Panels begin where a cache line does. With each word, `step` bytes are prefetched, from `ahead` on.
    """
    passes = OF_FLOATS if panels.dtype == types.float32 else OF_WIDENED_PAIRS
    return _product_of_floats(passes, x, panels, bias, out)


@intrinsic
def multiply_pairs(
    _context: Any,
    num_rows: Any,
    num_words: Any,
    ahead: Any,
    step: Any,
    x: Pointer,
    x_start: Any,
    x_stride: Any,
    panels: Pointer,
    column: Any,
    bias: Pointer,
    out: Pointer,
    start: Any,
    stride: Any,
) -> Any:
    """Do `multiply_floats` for `panels` and `x` in bfloat16, by AVX512_BF16.

    A sum takes pairs of columns. Products nearer to zero than 2**-126 count as zero, and so do factors.
    """
    return _product_of_floats(OF_PAIRS, x, panels, bias, out)


def _product_of_floats(
    passes: "tuple[Pass, ...]", x: Pointer, panels: Pointer, bias: Pointer, out: Pointer
) -> tuple[Any, Any]:
    """Return the signature of a product of floats, and what emits it."""
    index = types.intp

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, words, ahead, step, x, x_start, x_stride, panels, column, bias, out, start, stride = arguments

        def added(register: int, totals: list[Any]) -> list[Any]:
            more = _nth_register(builder, bias, column, register)
            return [builder.fadd(total, more) for total in totals]

        zeros = [ir.Constant(_FLOATS, None)] * _REGISTERS
        panel = _panel(builder, panels, column, words)
        lines, fetch = builder.gep(x, [x_start]), _Fetch(ahead, step)
        tile = _Tile(passes, lines, x_stride, panel, zeros, added, fetch)
        _multiply(builder, tile, rows, words, _Rows(builder.gep(out, [start]), stride))
        return context.get_dummy_value()

    places = (x, index, index, panels, index, bias, out, index, index)
    return types.void(index, index, index, index, *places), generate


class Pass(NamedTuple):
    """One of the passes in which words are multiplied: each takes 4 bytes of a row's factors."""

    widened: Callable[[Any, Any], Any]  # of a register of words: what is multiplied
    added: Callable[[Any, Any, Any, Any], Any]  # of a sum, a factor and what is multiplied: the new sum


class _Fetch(NamedTuple):
    """What is prefetched: so many bytes with each word, from an address on."""

    first: Any
    step: Any

    def emit(self, builder: Any, word: Any) -> None:
        """Emit the prefetches beside a word."""
        address = builder.add(self.first, builder.mul(word, self.step))
        fetch_line(builder, address)
        if PANEL * WORD // 2 > _LINE:  # a step may then be longer than a line; it is never longer than two
            is_long = builder.icmp_signed(">", self.step, ir.Constant(I64, _LINE))
            more = builder.select(is_long, ir.Constant(I64, _LINE), ir.Constant(I64, 0))
            fetch_line(builder, builder.add(address, more))


class _Tile(NamedTuple):
    """A product: its instructions, where its factors lie, what its sums begin with and become."""

    passes: tuple[Pass, ...]
    lines: Any  # the first row
    stride: Any  # bytes between rows
    panel: Any
    starts: list[Any]  # by register
    finish: Callable[[int, list[Any]], list[Any]]  # the sums of all rows in a register to results
    fetch: _Fetch


class _Rows(NamedTuple):
    """Rows of results."""

    first: Any
    stride: Any


def _multiply(builder: Any, tile: _Tile, rows: Any, words: Any, out: _Rows) -> None:
    """Emit the product for up to TILE_ROWS rows."""
    end = builder.append_basic_block("tile_end")
    switch = builder.switch(rows, end)
    for count in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"tile_{count}")
        switch.add_case(ir.Constant(rows.type, count), block)
        builder.position_at_end(block)
        totals = _add_words(builder, tile, count, words)
        for register in range(_REGISTERS):
            results = tile.finish(register, [builder.load(row[register]) for row in totals])
            for row, result in enumerate(results):
                place = builder.gep(out.first, [builder.mul(out.stride, ir.Constant(I64, row))])
                place = builder.bitcast(place, _FLOATS.as_pointer())
                builder.store(result, _nth(builder, place, register), align=4)
        builder.branch(end)
    builder.position_at_end(end)


def _add_words(builder: Any, tile: _Tile, num_rows: int, words: Any) -> list[list[Any]]:
    """Emit the sums of so many rows; return them by row and register."""
    lines = [
        builder.bitcast(
            builder.gep(tile.lines, [builder.mul(tile.stride, ir.Constant(I64, row))]), I32.as_pointer()
        )
        for row in range(num_rows)
    ]
    # LLVM turns these allocas into registers.
    totals = [[cgutils.alloca_once(builder, start.type) for start in tile.starts] for _ in lines]
    for row in totals:
        for start, total in zip(tile.starts, row, strict=True):
            builder.store(start, total)
    num_passes = len(tile.passes)
    with cgutils.for_range(builder, words) as loop:
        tile.fetch.emit(builder, loop.index)
        line = builder.gep(tile.panel, [builder.mul(loop.index, ir.Constant(I64, _REGISTERS))])
        first = builder.mul(loop.index, ir.Constant(I64, num_passes))
        for number, one_pass in enumerate(tile.passes):
            loaded = [builder.load(_nth(builder, line, one), align=4 * _LANES) for one in range(_REGISTERS)]
            weights = [one_pass.widened(builder, one) for one in loaded]
            index = builder.add(first, ir.Constant(I64, number))
            for factors, row in zip(lines, totals, strict=True):
                factor = _spread(builder, builder.load(builder.gep(factors, [index]), align=1))
                for weight, total in zip(weights, row, strict=True):
                    builder.store(one_pass.added(builder, builder.load(total), factor, weight), total)
    return totals


def _by_instruction(name: str) -> tuple[Pass, ...]:
    """Return the one pass of an instruction that multiplies words and adds to a sum."""

    def added(builder: Any, total: Any, factor: Any, weight: Any) -> Any:
        return _call(builder, name, total.type, [total, factor, weight])

    return (Pass(lambda _builder, word: word, added),)


def _in_16_bits() -> tuple[Pass, ...]:
    """Return the passes of the even and of the odd bytes of a word; factors are pairs of int16."""
    kind = ir.VectorType(ir.IntType(16), 2 * _LANES)
    byte = ir.Constant(kind, [8] * kind.count)
    name = "llvm.x86.avx512.pmaddw.d.512" if has_feature("avx512f") else "llvm.x86.avx2.pmadd.wd"

    def even(builder: Any, word: Any) -> Any:
        return builder.ashr(builder.shl(builder.bitcast(word, kind), byte), byte)

    def odd(builder: Any, word: Any) -> Any:
        return builder.ashr(builder.bitcast(word, kind), byte)

    def added(builder: Any, total: Any, factor: Any, weight: Any) -> Any:
        return builder.add(total, _call(builder, name, _VECTOR, [builder.bitcast(factor, kind), weight]))

    return Pass(even, added), Pass(odd, added)


def _widened_pairs() -> tuple[Pass, ...]:
    """Return the passes of the first and of the second bfloat16 of a word; factors are float32."""

    def first(builder: Any, word: Any) -> Any:
        return builder.bitcast(builder.shl(word, ir.Constant(_VECTOR, [16] * _LANES)), _FLOATS)

    def second(builder: Any, word: Any) -> Any:
        return builder.bitcast(builder.and_(word, ir.Constant(_VECTOR, [0xFFFF0000] * _LANES)), _FLOATS)

    return Pass(first, _add_fused), Pass(second, _add_fused)


def _add_fused(builder: Any, total: Any, factor: Any, weight: Any) -> Any:
    return _fused(builder, builder.bitcast(factor, _FLOATS), weight, total)


OF_BYTES = _by_instruction("llvm.x86.avx512.vpdpbusd.512") if has_feature("avx512vnni") else _in_16_bits()
OF_WIDENED_PAIRS = _widened_pairs()
OF_PAIRS = (
    _by_instruction("llvm.x86.avx512bf16.dpbf16ps.512") if has_feature("avx512bf16") else OF_WIDENED_PAIRS
)
OF_FLOATS = (Pass(lambda builder, word: builder.bitcast(word, _FLOATS), _add_fused),)


def _call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [one.type for one in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _panel(builder: Any, panels: Any, column: Any, words: Any) -> Any:
    """Return the pointer to the panel of a column."""
    start = builder.mul(column, words)
    return builder.bitcast(
        builder.gep(builder.bitcast(panels, I32.as_pointer()), [start]), _VECTOR.as_pointer()
    )


def _nth_register(builder: Any, numbers: Any, start: Any, register: int) -> Any:
    """Return a register of numbers of 4 bytes, of those from one on."""
    kind = ir.VectorType(numbers.type.pointee, _LANES)
    first = builder.bitcast(builder.gep(numbers, [start]), kind.as_pointer())
    return builder.load(_nth(builder, first, register), align=4)


def _spread(builder: Any, value: Any) -> Any:
    """Return a register with a value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_VECTOR, [0] * _LANES))


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return `x * y + z`, rounded once."""
    return _call(builder, f"llvm.fma.v{_LANES}f32", _FLOATS, [x, y, z])


def _nth(builder: Any, pointer: Any, number: int) -> Any:
    return builder.gep(pointer, [ir.Constant(I64, number)])
