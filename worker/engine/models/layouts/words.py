"""Packs small levels into 32-bit words and unpacks them; the first level is in the lowest bits."""

import torch
from torch import Tensor


def unpack_words(words: Tensor, num_bits: int) -> Tensor:
    """Return the uint8 levels [rows, columns * 32 / num_bits] in int32 words [rows, columns]."""
    levels = torch.empty(*words.shape, 32 // num_bits, dtype=torch.uint8)
    for place in range(levels.shape[2]):
        levels[:, :, place] = (words >> (num_bits * place)) & ((1 << num_bits) - 1)
    return levels.flatten(1)


def pack_words(levels: Tensor, num_bits: int) -> Tensor:
    """Return the int32 words that `unpack_words` takes; raises ValueError if columns do not fill words."""
    per_word = 32 // num_bits
    if levels.shape[1] % per_word:
        raise ValueError(f"{levels.shape[1]} columns are not a multiple of {per_word}, the levels in a word")
    shifts = torch.arange(0, 32, num_bits, dtype=torch.int64)
    words = (levels.long().reshape(len(levels), -1, per_word) << shifts).sum(dim=2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
