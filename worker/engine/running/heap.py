"""Gives memory back to the system while a model is loaded, where the C library is glibc."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Options of glibc's mallopt: man 3 mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# Bytes. What is larger has pages of its own, which go back as it is freed. While Steps run, glibc keeps what
# one of them frees for the next; it would come to these numbers by itself after large tensors were freed.
LARGEST_WHILE_LOADING, LARGEST_IN_STEPS = 1 << 20, 32 << 20


@contextmanager
def small_heap() -> Iterator[None]:
    """Keep no freed memory while a model is loaded, nor what was freed before.

    Large zeros take no memory before they are written; glibc would write those of all threads but the first.
    Weights that stay lie between tensors that are freed, so the heap would keep the memory of both.
    """
    library = ctypes.CDLL(None)
    set_option: Callable[[int, int], int] | None = getattr(library, "mallopt", None)
    trim: Callable[[int], int] | None = getattr(library, "malloc_trim", None)
    if set_option is None or trim is None:  # another C library
        yield
        return
    trim(0)
    set_option(MMAP_THRESHOLD, LARGEST_WHILE_LOADING)
    try:
        yield
    finally:
        set_option(MMAP_THRESHOLD, LARGEST_IN_STEPS)
        set_option(TRIM_THRESHOLD, 2 * LARGEST_IN_STEPS)
        trim(0)
