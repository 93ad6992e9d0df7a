"""What a token can be quantized to."""

import torch

# The largest level of each, symmetric about zero.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# What an all-zero token is scaled by, so that it stays zero.
SMALLEST_MAXIMUM = 1e-8
