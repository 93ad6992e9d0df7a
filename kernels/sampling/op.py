"""Checks the arguments of sampling. A GPU has all of it here; on a CPU the engine filters by itself."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels import device
from kernels.sampling import candidates, cpu
from kernels.threads import num_threads


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Return the chosen token of each row, [num_rows] int64, still on the device.

    `logits` is [num_rows, vocab_size] with a dense last axis; everything else is [num_rows] float64. A
    `temperature` of 0 takes the most likely token. `top_k` keeps that many tokens; at vocab_size or more, it
    is off. Of those, `top_p` keeps the most likely ones up to that share of probability, at least one. Of
    those, `min_p` keeps tokens with at least that share of the most likely token's probability. The chosen
    token is where the cumulative distribution of the kept ones, in vocabulary order, exceeds `uniform` in
    [0, 1). A row's token does not depend on other rows. Raises ValueError on shapes that do not fit.
    """
    options = (temperature, top_k, top_p, min_p, uniform)
    if (
        logits.dim() != 2
        or logits.stride(1) != 1
        or any(x.shape != logits.shape[:1] or x.dtype is not torch.float64 for x in options)
        or not all(x.is_contiguous() for x in options)
    ):
        raise ValueError(
            f"sample: arguments do not fit: logits {tuple(logits.shape)} with strides {logits.stride()}, "
            f"options {[tuple(x.shape) for x in options]} of {[x.dtype for x in options]}"
        )
    from kernels.sampling import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    return gpu.sample(logits, *options)


def draw(logits: Tensor, temperature: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    """Return the drawn token of each row, [num_rows] int64, on a CPU.

    `logits` is [num_rows, vocab_size] float32 with a dense last axis; the others are [num_rows], dense, of
    which `uniform` is float64. A token with less than `min_p` of the likeliest one's probability is not
    drawn, nor one whose logit is -inf. The token is where the cumulative distribution of the others, in
    vocabulary order, passes `uniform` in [0, 1). `temperature` is above 0. A row's token does not depend on
    other rows; one whose largest logit is NaN or infinite gets any. Raises ValueError on anything else.
    """
    num_rows, vocab_size = logits.shape
    floats = (logits, temperature, min_p)
    if (
        logits.stride(1) != 1
        or any(x.dtype is not torch.float32 for x in floats)
        or uniform.dtype is not torch.float64
        or any(x.shape != (num_rows,) or not x.is_contiguous() for x in (temperature, min_p, uniform))
    ):
        raise ValueError(
            f"draw: arguments do not fit: logits {tuple(logits.shape)} with strides {logits.stride()}, "
            f"options {[(tuple(x.shape), x.dtype) for x in (temperature, min_p, uniform)]}"
        )
    num_parts = max(1, min(num_threads(logits.numel()), num_rows))
    weights = torch.empty(num_parts, vocab_size)
    sums = torch.empty(num_parts, -(-vocab_size // cpu.CHUNK), dtype=torch.float64)
    chosen = torch.empty(num_rows, dtype=torch.int64)
    tensors = (logits, temperature, min_p, uniform, weights, sums, chosen)
    cpu.draw(num_parts, num_rows, vocab_size, logits.stride(0), *(x.data_ptr() for x in tensors))
    return chosen


def keep_allowed(logits: Tensor, rows: Sequence[int], allowed: np.ndarray) -> None:
    """Set the logits of tokens that a row does not allow to -inf, in place and on a CPU.

    `logits` is [num_rows, vocab_size] float32 with a dense last axis. `allowed` holds the masks of `rows`,
    [len(rows), num_words] uint32, dense: token t is bit t % 32 of word t // 32. Raises ValueError on anything
    else.
    """
    num_rows, vocab_size = logits.shape
    num_words = -(-vocab_size // cpu.WORD)
    if (
        logits.dtype is not torch.float32
        or logits.stride(1) != 1
        or allowed.dtype != np.uint32
        or allowed.shape[0] != len(rows)
        or allowed.shape[1] < num_words
        or not allowed.flags.c_contiguous
        or not all(0 <= row < num_rows for row in rows)
    ):
        raise ValueError(
            f"keep_allowed: arguments do not fit: logits {tuple(logits.shape)} {logits.dtype} with strides "
            f"{logits.stride()}, masks {allowed.shape} {allowed.dtype} of {len(rows)} rows"
        )
    places = np.array(rows, dtype=np.int64)
    cpu.keep_allowed(
        max(1, min(num_threads(len(rows) * vocab_size), len(rows))),
        len(rows),
        vocab_size,
        allowed.shape[1],
        logits.stride(0),
        places.ctypes.data,
        allowed.ctypes.data,
        logits.data_ptr(),
    )


def likeliest(logits: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of each row's largest logits, likeliest first, and their probabilities.

    Both are [num_rows, num_candidates], int64 and float32, of logits [num_rows, vocab_size] float32 with a
    dense last axis. On a CPU the logits that were found become -inf, and of equal ones the lower token comes
    first. The token is -1 with a probability of 0 where no finite logit is left, and in a row that has NaN or
    infinity. Raises ValueError on anything else.
    """
    num_rows, vocab_size = logits.shape
    if logits.dtype is not torch.float32 or logits.stride(1) != 1 or not 0 < num_candidates <= vocab_size:
        raise ValueError(
            f"likeliest: arguments do not fit: logits {tuple(logits.shape)} {logits.dtype} with strides "
            f"{logits.stride()}, {num_candidates} candidates"
        )
    if device.uses_triton(logits):
        return _likeliest_on_gpu(logits, num_candidates)
    num_parts = max(1, min(num_threads(logits.numel()), num_rows))
    maxima = torch.empty(num_parts, -(-vocab_size // cpu.CHUNK))
    tokens = torch.empty(num_rows, num_candidates, dtype=torch.int64)
    shares = torch.empty(num_rows, num_candidates)
    tensors = (logits, maxima, tokens, shares)
    sizes = (num_rows, vocab_size, logits.stride(0), num_candidates)
    candidates.find(num_parts, *sizes, *(x.data_ptr() for x in tensors))
    return tokens, shares


def _likeliest_on_gpu(logits: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    found, tokens = logits.topk(num_candidates, dim=-1)
    is_sound = found[:, :1].isfinite() & found.isfinite()  # a largest logit that is NaN comes first
    shares = (found - logits.logsumexp(dim=-1, keepdim=True)).exp()
    return tokens.where(is_sound, -1), shares.where(is_sound, 0.0)
