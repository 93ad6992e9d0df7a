"""How checkpoints lay quantized weights out in tensors; what they mean is `kernels.quantization`'s."""
