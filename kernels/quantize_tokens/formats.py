"""The formats to which a token can be quantized."""

import torch

# The largest level of each format; levels are symmetric about zero.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# The least maximum from which a scale is computed, so that an all-zero token stays zero.
SMALLEST_MAXIMUM = 1e-8
